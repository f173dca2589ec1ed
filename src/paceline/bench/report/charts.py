"""Small charts as SVG, for reports that no library is worth loading for. Light and dark by CSS."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 70, 40, 50, 55
TICKS = 6  # at most about so many
LIGHT = ("#2563ad", "#c2620e", "#2e8555", "#8a4fae")  # of the series, in order
DARK = ("#74aef0", "#f0a35e", "#6fc795", "#c49be0")


def _style() -> str:
    def rules(paper: str, ink: str, grid: str, colours: Sequence[str]) -> str:
        series = "".join(
            f".chart .s{i}{{fill:{colour};stroke:{colour}}}" for i, colour in enumerate(colours)
        )
        return (
            f".chart .paper{{fill:{paper}}}.chart text,.chart .ink{{fill:{ink}}}"
            f".chart .grid{{stroke:{grid}}}.chart .mark{{stroke:{ink}}}{series}"
        )

    light = rules("#fff", "#222", "#e4e4e4", LIGHT)
    dark = rules("#16181c", "#ddd", "#33363c", DARK)
    shapes = ".chart .line,.chart .hollow{fill:none}.chart .dashed{stroke-dasharray:5 4}"
    return f"<style>{light}{shapes}@media(prefers-color-scheme:dark){{{dark}{shapes}}}</style>"


STYLE = _style()


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float
    label: str


class Axis:
    """Maps values from `low` to `high` to places between `start` and `end`; round ticks."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self._start, self._end = low, high, start, end
        rough = (high - low) / TICKS
        unit = 10 ** math.floor(math.log10(rough))
        step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough)
        first = math.ceil(low / step - 1e-9)
        self.ticks = [step * n for n in range(first, math.floor(high / step + 1e-9) + 1)]

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float) -> Axis:
        """With a margin around the values."""
        low, high = min(values), max(values)
        margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
        return cls(low - margin, high + margin, start, end)

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self._start + share * (self._end - self._start)


def scatter(points: Sequence[Point], *, title: str, x_label: str, y_label: str) -> str:
    """The SVG text; the points are joined in the order in which they are given."""
    x_axis = Axis.around([point.x for point in points], LEFT, WIDTH - RIGHT)
    y_axis = Axis.around([point.y for point in points], HEIGHT - BOTTOM, TOP)
    places = [(x_axis(point.x), y_axis(point.y)) for point in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [
        *frame(title, x_label, y_label),
        *(x_tick(x_axis(value), f"{value:.3g}") for value in x_axis.ticks),
        *(y_tick(y_axis(value), f"{value:.3g}") for value in y_axis.ticks),
        f'<polyline points="{path}" class="line mark"/>',
    ]
    for (x, y), point in zip(places, points, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="s0"/>')
        parts.append(text(x + 7, y - 7, point.label, anchor="start"))
    return drawing(parts)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]], *, title: str, x_label: str, y_label: str
) -> str:
    """The SVG text of one line for each name, through its points in the order given."""
    points = [point for line in series.values() for point in line]
    x_axis = Axis.around([x for x, _ in points], LEFT, WIDTH - RIGHT)
    y_axis = Axis.around([y for _, y in points], HEIGHT - BOTTOM, TOP)
    parts = [
        *frame(title, x_label, y_label),
        *legend(list(series), range(len(series))),
        *(x_tick(x_axis(value), f"{value:.3g}") for value in x_axis.ticks),
        *(y_tick(y_axis(value), f"{value:.3g}") for value in y_axis.ticks),
    ]
    for index, line in enumerate(series.values()):
        path = " ".join(f"{x_axis(x):.1f},{y_axis(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" class="s{index} line"/>')
    return drawing(parts)


# -- what charts are put together from -------------------------------------------------------------


def drawing(parts: Sequence[str]) -> str:
    """A whole SVG: it brings its colours along, in a page and by itself."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12">'
    )
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" class="paper"/>'
    return "\n".join([head, STYLE, paper, *parts, "</svg>\n"])


def frame(title: str, x_label: str, y_label: str) -> Iterator[str]:
    """Title and labels of the axes."""
    yield text(WIDTH / 2, 20, title, size=15)
    yield text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_label)
    yield f'<g transform="rotate(-90 18 {HEIGHT / 2})">{text(18, HEIGHT / 2, y_label)}</g>'


def legend(names: Sequence[str], colours: Sequence[int]) -> Iterator[str]:
    """One entry a series, in a line below the title."""
    x = float(LEFT)
    for index, name in zip(colours, names, strict=True):
        yield f'<rect x="{x:.0f}" y="31" width="10" height="10" class="s{index}"/>'
        yield text(x + 15, 40, name, anchor="start")
        x += 32 + 6.6 * len(name)


def x_tick(x: float, label: str) -> str:
    line = f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" class="grid"/>'
    return line + text(x, HEIGHT - BOTTOM + 18, label)


def y_tick(y: float, label: str) -> str:
    line = f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" class="grid"/>'
    return line + text(LEFT - 8, y + 4, label, anchor="end")


def text(x: float, y: float, words: str, *, anchor: str = "middle", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(words)}</text>"
    )
