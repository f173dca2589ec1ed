"""The charts of an evaluation's report: bars by group and series, and the cloud under y = x."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from paceline.bench.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    drawing,
    frame,
    legend,
    text,
    x_tick,
    y_tick,
)

FILLED = 0.76  # share of a group's width that its bars take
WIDEST = 56  # of a bar
CLOUD = (0, 3)  # colours of its two series: none that stands for another drafter in the bars


@dataclass(frozen=True, slots=True)
class Bar:
    """`interval` is drawn as a whisker, `note` shown when pointed at; height None: nothing."""

    height: float | None
    note: str = ""
    interval: Sequence[float] | None = None


def bars(
    groups: Sequence[str],
    series: Sequence[str],
    values: Sequence[Sequence[Bar]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    line: float | None = None,
) -> str:
    """`values[group][series]`. `line` is a height to draw a dashed line at."""
    tops = [max(b.height or 0.0, *(b.interval or (0.0,))) for group in values for b in group]
    y_axis = Axis(0.0, 1.06 * max([*tops, line or 0.0, 1e-9]), HEIGHT - BOTTOM, TOP)
    wide = (WIDTH - RIGHT - LEFT) / max(1, len(groups))
    parts = [
        *frame(title, x_label, y_label),
        *legend(series, range(len(series))),
        *(y_tick(y_axis(value), f"{value:.3g}") for value in y_axis.ticks),
    ]
    for index, name in enumerate(groups):
        left = LEFT + index * wide
        parts.append(text(left + wide / 2, HEIGHT - BOTTOM + 18, _short(name, wide)))
        taken = min(wide * FILLED, WIDEST * len(series))
        parts += _group(values[index], left + (wide - taken) / 2, taken, y_axis)
    if line is not None:
        parts.append(_line(LEFT, y_axis(line), WIDTH - RIGHT, y_axis(line)))
    return drawing(parts)


def _group(group: Sequence[Bar], left: float, wide: float, y_axis: Axis) -> Iterator[str]:
    each = wide / len(group)
    for index, bar in enumerate(group):
        if bar.height is None:
            continue
        x, y = left + index * each, y_axis(bar.height)
        yield (
            f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{max(1.0, each - 2):.1f}" '
            f'height="{max(0.0, y_axis(0.0) - y):.1f}" class="s{index}" stroke="none">'
            f"<title>{escape(bar.note)}</title></rect>"
        )
        if bar.interval is not None:
            middle, (low, high) = x + each / 2, map(y_axis, bar.interval)
            yield (
                f'<path d="M{middle - 4:.1f} {low:.1f}h8m-4 0V{high:.1f}m-4 0h8" '
                'class="mark" fill="none"/>'
            )


def cloud(
    series: Sequence[str],
    points: Sequence[Sequence[tuple[float, float, str]]],
    *,
    title: str,
    x_label: str,
    y_label: str,
) -> str:
    """Points (x, y, note) of two series, on equal scales from 0, with the lines y = x and y = 1."""
    values = [value for each in points for x, y, _ in each for value in (x, y)]
    most = 1.06 * max([*values, 2.0])
    x_axis = Axis(0.0, most, LEFT, WIDTH - RIGHT)
    y_axis = Axis(0.0, most, HEIGHT - BOTTOM, TOP)
    parts = [
        *frame(title, x_label, y_label),
        *legend(series, CLOUD),
        *(x_tick(x_axis(value), f"{value:.3g}") for value in x_axis.ticks),
        *(y_tick(y_axis(value), f"{value:.3g}") for value in y_axis.ticks),
        _line(x_axis(0.0), y_axis(0.0), x_axis(most), y_axis(most)),
        text(x_axis(most) - 4, y_axis(most) + 42, "y = x", anchor="end"),
        _line(x_axis(0.0), y_axis(1.0), x_axis(most), y_axis(1.0)),
    ]
    for colour, each in zip(CLOUD, points, strict=True):
        for x, y, note in each:
            parts.append(
                f'<circle cx="{x_axis(x):.1f}" cy="{y_axis(y):.1f}" r="4" class="s{colour}" '
                f'fill-opacity=".6"><title>{escape(note)}</title></circle>'
            )
    return drawing(parts)


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" class="mark dashed" '
        'stroke-opacity=".6"/>'
    )


def _short(name: str, wide: float) -> str:
    most = max(3, int(wide / 6.5))
    return name if len(name) <= most else name[: most - 1] + "…"
