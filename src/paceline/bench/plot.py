"""A scatter of a few labelled points as SVG, for reports that no library is worth loading for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 70, 40, 50, 55
TICKS = 5


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float
    label: str


def scatter(points: Sequence[Point], *, title: str, x_label: str, y_label: str) -> str:
    """The SVG text; the points are joined in the order in which they are given."""
    x_axis = _Axis([point.x for point in points], LEFT, WIDTH - RIGHT)
    y_axis = _Axis([point.y for point in points], HEIGHT - BOTTOM, TOP)
    places = [(x_axis(point.x), y_axis(point.y)) for point in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 24, title, size=15),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_label),
        f'<g transform="rotate(-90 18 {HEIGHT / 2})">{_text(18, HEIGHT / 2, y_label)}</g>',
        *(_x_tick(x_axis(value), value) for value in x_axis.ticks),
        *(_y_tick(y_axis(value), value) for value in y_axis.ticks),
        f'<polyline points="{path}" fill="none" stroke="#88a" stroke-width="1.5"/>',
    ]
    for (x, y), point in zip(places, points, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#224a9f"/>')
        parts.append(_text(x + 7, y - 7, point.label, anchor="start"))
    return "\n".join([*parts, "</svg>\n"])


class _Axis:
    """Maps values to places between `start` and `end`, with a margin around the values."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
        self._low, self._high, self._start, self._end = low - margin, high + margin, start, end
        step = (self._high - self._low) / (TICKS - 1)
        self.ticks = [self._low + step * index for index in range(TICKS)]

    def __call__(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)


def _x_tick(x: float, value: float) -> str:
    line = f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>'
    return line + _text(x, HEIGHT - BOTTOM + 18, f"{value:.3g}")


def _y_tick(y: float, value: float) -> str:
    line = f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#eee"/>'
    return line + _text(LEFT - 8, y + 4, f"{value:.3g}", anchor="end")


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#222">'
        f"{escape(text)}</text>"
    )
