"""Charts as SVG, light and dark by CSS: bars by group, lines, and points.

All charts of Python are drawn here. Reports must be made where no plotting library is installed,
and load nothing when they are read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.bench.report.pages import render

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, WIDTH - 40, 50, HEIGHT - 55  # of the area between the axes
TICKS = 6  # at most about so many
LIGHT = ("#2563ad", "#c2620e", "#2e8555", "#8a4fae")  # of the series, in order
DARK = ("#74aef0", "#f0a35e", "#6fc795", "#c49be0")
FILLED = 0.76  # share of a group's width that its bars take
WIDEST = 56  # of a bar
CLOUD = (0, 3)  # colours of its two series: none that stands for another drafter in the bars
MARGIN = 1.06  # room above the largest value where an axis begins at 0
Place = tuple[float, float]
Note = tuple[float, float, str]  # x, y and words


@dataclass(frozen=True, slots=True)
class Labels:
    """The title of a chart and the names of its axes."""

    title: str
    x_label: str
    y_label: str


@dataclass(frozen=True, slots=True)
class ChartBar:
    """`interval` is drawn as a whisker, `note` shown when pointed at; nothing for height None."""

    height: float | None
    note: str = ""
    interval: Sequence[float] | None = None


class Axis:
    """Maps values from `low` to `high` to places between `start` and `end`; round ticks."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self._start, self._end = low, high, start, end
        rough = (high - low) / TICKS
        unit = 10 ** math.floor(math.log10(rough))
        step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough)
        first = math.ceil(low / step - 1e-9)
        values = [step * n for n in range(first, math.floor(high / step + 1e-9) + 1)]
        self.ticks = [(self(value), f"{value:.3g}") for value in values]

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float) -> Axis:
        """Return an axis with a margin around the values."""
        low, high = min(values), max(values)
        margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
        return cls(low - margin, high + margin, start, end)

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self._start + share * (self._end - self._start)


@dataclass(slots=True)
class Chart:
    """The parts of a drawing, by their places. Without `x_axis` its groups of bars have names."""

    labels: Labels
    y_axis: Axis
    x_axis: Axis | None = None
    legend: list[tuple[float, int, str]] = field(default_factory=list)  # x, colour, name
    groups: list[tuple[float, str]] = field(default_factory=list)
    # x, y, width, height, colour, note
    bars: list[tuple[float, float, float, float, int, str]] = field(default_factory=list)
    whiskers: list[tuple[float, float, float]] = field(default_factory=list)  # x, low, high
    guides: list[tuple[float, float, float, float]] = field(default_factory=list)
    lines: list[tuple[list[Place], int | None]] = field(default_factory=list)
    dots: list[tuple[float, float, int, str]] = field(default_factory=list)  # x, y, colour, note
    words: list[tuple[float, float, str, str]] = field(default_factory=list)

    def name_series(self, names: Sequence[str], colours: Sequence[int]) -> None:
        """Add the legend, in a line below the title."""
        x = float(LEFT)
        for colour, name in zip(colours, names, strict=True):
            self.legend.append((x, colour, name))
            x += 32 + 6.6 * len(name)

    def svg(self) -> str:
        """Return the drawing, which brings its colours along, in a page and by itself."""
        area = {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
        size = {"width": WIDTH, "height": HEIGHT, "light": LIGHT, "dark": DARK}
        return render("chart.svg", {"chart": self, **area, **size}) + "\n"


def bars(
    groups: Sequence[str],
    series: Sequence[str],
    values: Sequence[Sequence[ChartBar]],
    labels: Labels,
    line: float | None = None,
) -> str:
    """Return the SVG of `values[group][series]`. `line` is a height to draw a dashed line at."""
    tops = [max(bar.height or 0.0, *(bar.interval or (0.0,))) for group in values for bar in group]
    place = Axis(0.0, MARGIN * max([*tops, line or 0.0, 1e-9]), BOTTOM, TOP)
    chart = Chart(labels, place)
    chart.name_series(series, range(len(series)))
    group_width = (RIGHT - LEFT) / max(1, len(groups))
    width = min(group_width * FILLED / len(series), WIDEST)
    for number, (name, group) in enumerate(zip(groups, values, strict=True)):
        middle = LEFT + (number + 0.5) * group_width
        chart.groups.append((middle, _short(name, group_width)))
        for index, bar in enumerate(group):
            if bar.height is None:
                continue
            x, y = middle + (index - len(series) / 2) * width + 1, place(bar.height)
            drawn, height = max(1.0, width - 2), max(0.0, place(0.0) - y)
            chart.bars.append((x, y, drawn, height, index, bar.note))
            if bar.interval is not None:
                low, high = map(place, bar.interval)
                chart.whiskers.append((x + drawn / 2, low, high))
    if line is not None:
        chart.guides.append((LEFT, place(line), RIGHT, place(line)))
    return chart.svg()


def cloud(series: Sequence[str], points: Sequence[Sequence[Note]], labels: Labels) -> str:
    """Return the SVG of points of one or two series, with the lines y = x and y = 1.

    The scales are equal."""
    values = [value for notes in points for x, y, _ in notes for value in (x, y)]
    most = MARGIN * max([*values, 2.0])
    x_axis, y_axis = Axis(0.0, most, LEFT, RIGHT), Axis(0.0, most, BOTTOM, TOP)
    chart = Chart(labels, y_axis, x_axis)
    colours = CLOUD[: len(series)]
    chart.name_series(series, colours)
    chart.guides += [(LEFT, BOTTOM, RIGHT, TOP), (LEFT, y_axis(1.0), RIGHT, y_axis(1.0))]
    chart.words.append((RIGHT - 4, TOP + 42, "y = x", "end"))
    for colour, notes in zip(colours, points, strict=True):
        chart.dots += [(x_axis(x), y_axis(y), colour, note) for x, y, note in notes]
    return chart.svg()


def scatter(points: Sequence[Note], labels: Labels) -> str:
    """Return the SVG of points (x, y, label), joined in the order in which they are given."""
    chart, (places,) = _joined([[(x, y) for x, y, _ in points]], [None], labels)
    for (x, y), (_, _, label) in zip(places, points, strict=True):
        chart.dots.append((x, y, 0, ""))
        chart.words.append((x + 7, y - 7, label, "start"))
    return chart.svg()


def lines(series: Mapping[str, Sequence[Place]], labels: Labels) -> str:
    """Return the SVG of one line for each name, through its points in the order given."""
    chart, _ = _joined(list(series.values()), range(len(series)), labels)
    chart.name_series(list(series), range(len(series)))
    return chart.svg()


def _joined(
    series: Sequence[Sequence[Place]], colours: Sequence[int | None], labels: Labels
) -> tuple[Chart, list[list[Place]]]:
    """Return a chart with a line through each series, and the places of its points."""
    points = [point for line in series for point in line]
    x_axis = Axis.around([x for x, _ in points], LEFT, RIGHT)
    y_axis = Axis.around([y for _, y in points], BOTTOM, TOP)
    places = [[(x_axis(x), y_axis(y)) for x, y in line] for line in series]
    lines = list(zip(places, colours, strict=True))
    return Chart(labels, y_axis, x_axis, lines=lines), places


def _short(name: str, width: float) -> str:
    most = max(3, int(width / 6.5))
    return name if len(name) <= most else name[: most - 1] + "…"
