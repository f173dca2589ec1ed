"""Spans of time on the monotonic clock, one lane for each thread that records.

Whoever does the work says `with spans("draft"):`, and need not know whether anybody listens. OFF is
what everyone holds until a profile is asked for: it takes no clock and keeps nothing.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, Self, TypeVar

ROOM = 1 << 10  # spans that a lane has room for before it grows
TOP = -1  # the parent of a span that lies in no other
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Spans:
    """Takes no notice: what is held where nobody profiles."""

    def __call__(self, name: str) -> Self:
        """A context: the span lasts as long as it. Spans nest."""
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None

    def around(self, name: str, work: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return `work` with a span around each call: for what is called so often that even a
        context of OFF would be felt."""
        return work

    def parts(self, names: Sequence[str], ticks: Iterable[int]) -> None:
        """Spans within the open one that follow each other: names[i] from tick i to tick i + 1, in
        ns of time.monotonic_ns()."""

    def count(self, counts: Callable[..., Mapping[str, int]], *of: object) -> None:
        """Note numbers about the open span: counts(*of), which is called only if they are kept."""

    def lane(self, name: str) -> Spans:
        """Return the lane of another thread, or of a task that takes turns with others."""
        return self


OFF = Spans()


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times in ns; `parent` is the index of the one it lies in, or TOP."""

    name: str
    start: int
    end: int
    parent: int
    counts: Mapping[str, int] | None = None

    @property
    def duration(self) -> int:
        return self.end - self.start


class Lane(Spans):
    """The spans of one thread, in the order in which they began."""

    def __init__(self, name: str, recording: Recording) -> None:
        self.name, self._recording = name, recording
        self._names: list[str] = []
        self._starts, self._ends = array("q", bytes(8 * ROOM)), array("q", bytes(8 * ROOM))
        self._parents = array("q", bytes(8 * ROOM))
        self._open: list[int] = []
        self._counts: dict[int, Mapping[str, int]] = {}
        self.latest: Mapping[str, int] | None = None  # of what count() was told

    def __call__(self, name: str) -> Self:
        index = len(self._names)
        self._make_room(index + 1)
        self._names.append(name)
        self._parents[index] = self._open[-1] if self._open else TOP
        self._open.append(index)
        self._starts[index] = time.monotonic_ns()
        return self

    def __exit__(self, *_: object) -> None:
        now = time.monotonic_ns()
        self._ends[self._open.pop()] = now

    def around(self, name: str, work: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        def spanned(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            with self(name):
                return work(*args, **kwargs)

        return spanned

    def parts(self, names: Sequence[str], ticks: Iterable[int]) -> None:
        # All at once: a forward has hundreds, and what this takes lands in the open span.
        times, own = array("q", ticks), slice(len(self._names), len(self._names) + len(names))
        assert len(times) == len(names) + 1
        self._make_room(own.stop)
        self._names += names
        self._starts[own], self._ends[own] = times[:-1], times[1:]
        self._parents[own] = array("q", [self._open[-1] if self._open else TOP]) * len(names)

    def count(self, counts: Callable[..., Mapping[str, int]], *of: object) -> None:
        self._counts[self._open[-1]] = self.latest = counts(*of)

    def lane(self, name: str) -> Spans:
        return self._recording.lane(name)

    def __len__(self) -> int:
        return len(self._names)

    def spans(self) -> list[Span]:
        """Return what was recorded; not while a span is open."""
        assert not self._open, f"{self._names[self._open[-1]]} is still going on"
        rows = zip(self._names, self._starts, self._ends, self._parents, strict=False)
        return [Span(*row, self._counts.get(index)) for index, row in enumerate(rows)]

    def _make_room(self, spans: int) -> None:
        while spans > len(self._starts):
            more = bytes(8 * len(self._starts))
            for room in (self._starts, self._ends, self._parents):
                room.frombytes(more)


@dataclass(slots=True)
class Recording:
    """All lanes of one profiled run, in the order in which they were opened."""

    lanes: list[Lane] = field(default_factory=list)

    def lane(self, name: str) -> Lane:
        self.lanes.append(Lane(name, self))
        return self.lanes[-1]
