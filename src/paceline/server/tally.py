"""Counts of rounds and times of streams by drafter and cohort, from the deltas as they come."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from paceline.core import FinishReason, OutputDelta, Request, RequestMetrics, SpeculationStats

ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)  # of streams that ended by themselves
REMEMBERED = 6000  # streams whose times are kept, the latest


@dataclass(frozen=True, slots=True)
class StreamGroup:
    """Streams that are counted together. No drafter is AR."""

    drafter: str | None
    cohort: str
    version: str | None = None

    @classmethod
    def of(cls, request: Request) -> Self:
        return cls(request.drafter, request.cohort, request.drafter_version)


@dataclass(frozen=True, slots=True)
class Times:
    """The latencies of a stream that ended by itself at `ended`, in monotonic seconds."""

    ended: float
    group: StreamGroup
    metrics: RequestMetrics


class Traffic:
    """Counts by group and the latest streams' times. Any thread may note and read. `past` sums up
    the groups of drafters that have left."""

    def __init__(self) -> None:
        self.past = SpeculationStats()
        self._used: dict[StreamGroup, float] = {}  # when a stream told of it last, monotonic
        self.by_group: defaultdict[StreamGroup, SpeculationStats] = defaultdict(SpeculationStats)
        self.times: deque[Times] = deque(maxlen=REMEMBERED)
        self._lock = threading.Lock()

    def note(self, group: StreamGroup, delta: OutputDelta) -> None:
        """Count what a delta of a stream of `group` tells."""
        if delta.round is not None:
            with self._lock:
                self.by_group[group].add(delta.round)
                self._used[group] = time.monotonic()
        if delta.metrics is not None and delta.finish_reason in ANSWERED:
            self.times.append(Times(time.monotonic(), group, delta.metrics))

    def copies(self) -> dict[StreamGroup, SpeculationStats]:
        """Return the counts of now, which later rounds do not change."""
        with self._lock:
            return {group: stats.copy() for group, stats in self.by_group.items()}

    def sum_up(self, loaded: Collection[str], before: float) -> None:
        """Keep no longer apart the groups of drafters that are not `loaded` and were used last
        `before` that time: drafters come and go as long as a server runs."""
        with self._lock:
            for group, used in list(self._used.items()):
                if group.drafter is not None and group.drafter not in loaded and used < before:
                    self.past += self.by_group.pop(group)
                    del self._used[group]


def total(stats: Iterable[SpeculationStats]) -> SpeculationStats:
    return sum(stats, SpeculationStats())


def quantile_of(ordered: Sequence[float], share: float) -> float:
    """Return a quantile: linear between the two nearest of `ordered`, which is not empty."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
