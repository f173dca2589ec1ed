"""A recording as Chrome's Trace Event Format, for chrome://tracing and ui.perfetto.dev.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: complete events
(ph X), counters (ph C) and names of processes and threads (ph M). Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from paceline.core.spans import Recording, Span

COUNTERS = ("rows", "drafted", "committed")


def trace(passes: Mapping[str, Recording], about: Mapping[str, object]) -> dict[str, object]:
    """Return one process for each pass and one thread for each lane, numbered through all passes
    because viewers take equal numbers for one thread. `about` is kept beside the events."""
    recorded = {
        name: [(lane, lane.spans()) for lane in recording.lanes if len(lane)]
        for name, recording in passes.items()
    }
    starts = [spans[0].start for lanes in recorded.values() for _, spans in lanes]
    origin = min(starts, default=0)
    events: list[dict[str, object]] = []
    threads = count(1)
    for process, (name, lanes) in enumerate(recorded.items(), start=1):
        events.append(_name("process_name", {"pid": process}, name))
        for lane, spans in lanes:
            where = {"pid": process, "tid": next(threads)}
            events.append(_name("thread_name", where, lane.name))
            events += _events(spans, lane.name, where, origin)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(about)}


def _events(
    spans: Sequence[Span], category: str, where: Mapping[str, int], origin: int
) -> Iterator[dict[str, object]]:
    for span in spans:
        event = {
            "ph": "X",
            "name": span.name,
            "cat": category,
            "ts": (span.start - origin) / 1e3,
            "dur": span.duration / 1e3,
            **where,
        }
        if span.counts is None:
            yield event
            continue
        yield event | {"args": dict(span.counts)}
        for counter in COUNTERS:
            yield {
                "ph": "C",
                "name": counter,
                "ts": event["ts"],
                "pid": where["pid"],
                "args": {counter: span.counts[counter]},
            }


def _name(kind: str, where: Mapping[str, int], name: str) -> dict[str, object]:
    return {"ph": "M", "name": kind, **where, "args": {"name": name}}
