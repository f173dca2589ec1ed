"""Spans made by hand: a step is what its parts say, to the nanosecond."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.spans import TOP, Span

COUNTS = {
    "requests": 1, "rows": 4, "prompt_rows": 0, "outputs": 4, "drafted": 3, "committed": 2,
    "seen": 100,
}  # fmt: skip


def step(
    spans: list[Span],
    start: int,
    parts: Mapping[str, int],
    forward: Mapping[str, int],
    *,
    rest: int = 0,
    forward_rest: int = 0,
    **counts: int,
) -> None:
    """Adds a step of `parts` (ns each), of a forward of `forward`, and of time between them."""
    top, clock = len(spans), start
    whole = sum(parts.values()) + sum(forward.values()) + rest + forward_rest
    spans.append(Span("step", start, start + whole, TOP, COUNTS | counts))
    for name, duration in parts.items():
        spans.append(Span(name, clock, clock + duration, top))
        clock += duration
    inner = len(spans)
    spans.append(Span("forward", clock, clock + sum(forward.values()) + forward_rest, top))
    for name, duration in forward.items():
        spans.append(Span(name, clock, clock + duration, inner))
        clock += duration
