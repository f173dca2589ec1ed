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


@dataclass(frozen=True, slots=True)
class _Bar:
    """A bar with its place in the drawing. `whisker` holds its lower and its upper end."""

    x: float
    y: float
    width: float
    height: float
    colour: int
    note: str
    whisker: Place | None

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True)
class _Dot:
    x: float
    y: float
    colour: int
    note: str = ""
    opacity: float = 1.0


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
    """The parts of a drawing, by their places: what the template writes as SVG."""

    title: str
    x_label: str
    y_label: str
    legend: list[tuple[float, int, str]] = field(default_factory=list)
    x_ticks: list[tuple[float, str]] = field(default_factory=list)
    y_ticks: list[tuple[float, str]] = field(default_factory=list)
    groups: list[tuple[float, str]] = field(default_factory=list)
    bars: list[_Bar] = field(default_factory=list)
    guides: list[tuple[float, float, float, float]] = field(default_factory=list)
    lines: list[tuple[str, int | None]] = field(default_factory=list)
    dots: list[_Dot] = field(default_factory=list)
    words: list[tuple[float, float, str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, labels: Labels, y_axis: Axis, x_axis: Axis | None = None) -> Chart:
        """Return a chart with nothing but its axes. Without `x_axis` its bars have names."""
        x_ticks = [] if x_axis is None else x_axis.ticks
        return cls(
            labels.title, labels.x_label, labels.y_label, x_ticks=x_ticks, y_ticks=y_axis.ticks
        )

    def name_series(self, names: Sequence[str], colours: Sequence[int]) -> None:
        """Add the legend, in a line below the title."""
        x = float(LEFT)
        for colour, name in zip(colours, names, strict=True):
            self.legend.append((x, colour, name))
            x += 32 + 6.6 * len(name)

    def join(self, places: Sequence[Place], colour: int | None) -> None:
        """Add a line through places; the colour of text for None."""
        self.lines.append((" ".join(f"{x:.1f},{y:.1f}" for x, y in places), colour))

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
    y_axis = Axis(0.0, MARGIN * max([*tops, line or 0.0, 1e-9]), BOTTOM, TOP)
    chart = Chart.of(labels, y_axis)
    chart.name_series(series, range(len(series)))
    wide = (RIGHT - LEFT) / max(1, len(groups))
    bar_width = min(wide * FILLED / len(series), WIDEST)
    for number, (name, group) in enumerate(zip(groups, values, strict=True)):
        middle = LEFT + (number + 0.5) * wide
        chart.groups.append((middle, _short(name, wide)))
        for index, bar in enumerate(group):
            if bar.height is None:
                continue
            x, y = middle + (index - len(series) / 2) * bar_width, y_axis(bar.height)
            whisker = None if bar.interval is None else (y_axis(bar.interval[0]),
                                                         y_axis(bar.interval[1]))  # fmt: skip
            width, height = max(1.0, bar_width - 2), max(0.0, y_axis(0.0) - y)
            chart.bars.append(_Bar(x + 1, y, width, height, index, bar.note, whisker))
    if line is not None:
        chart.guides.append((LEFT, y_axis(line), RIGHT, y_axis(line)))
    return chart.svg()


def cloud(
    series: Sequence[str], points: Sequence[Sequence[tuple[float, float, str]]], labels: Labels
) -> str:
    """Return the SVG of points (x, y, note) of two series, on equal scales from 0, with the lines
    y = x and y = 1."""
    values = [value for notes in points for x, y, _ in notes for value in (x, y)]
    most = MARGIN * max([*values, 2.0])
    x_axis, y_axis = Axis(0.0, most, LEFT, RIGHT), Axis(0.0, most, BOTTOM, TOP)
    chart = Chart.of(labels, y_axis, x_axis)
    chart.name_series(series, CLOUD)
    chart.guides += [(LEFT, BOTTOM, RIGHT, TOP), (LEFT, y_axis(1.0), RIGHT, y_axis(1.0))]
    chart.words.append((RIGHT - 4, TOP + 42, "y = x", "end"))
    for colour, notes in zip(CLOUD, points, strict=True):
        chart.dots += [_Dot(x_axis(x), y_axis(y), colour, note, 0.6) for x, y, note in notes]
    return chart.svg()


def scatter(points: Sequence[tuple[float, float, str]], labels: Labels) -> str:
    """Return the SVG of points (x, y, label), joined in the order in which they are given."""
    x_axis = Axis.around([x for x, _, _ in points], LEFT, RIGHT)
    y_axis = Axis.around([y for _, y, _ in points], BOTTOM, TOP)
    chart = Chart.of(labels, y_axis, x_axis)
    places = [(x_axis(x), y_axis(y)) for x, y, _ in points]
    chart.join(places, None)
    chart.dots += [_Dot(x, y, 0) for x, y in places]
    chart.words += [
        (x + 7, y - 7, point[2], "start") for (x, y), point in zip(places, points, strict=True)
    ]
    return chart.svg()


def lines(series: Mapping[str, Sequence[Place]], labels: Labels) -> str:
    """Return the SVG of one line for each name, through its points in the order given."""
    points = [point for line in series.values() for point in line]
    x_axis = Axis.around([x for x, _ in points], LEFT, RIGHT)
    y_axis = Axis.around([y for _, y in points], BOTTOM, TOP)
    chart = Chart.of(labels, y_axis, x_axis)
    chart.name_series(list(series), range(len(series)))
    for index, line in enumerate(series.values()):
        chart.join([(x_axis(x), y_axis(y)) for x, y in line], index)
    return chart.svg()


def _short(name: str, wide: float) -> str:
    most = max(3, int(wide / 6.5))
    return name if len(name) <= most else name[: most - 1] + "…"
