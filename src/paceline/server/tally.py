"""Counts of rounds and times of streams by drafter and cohort, from the deltas as they come."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
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

    @classmethod
    def of(cls, request: Request) -> Self:
        return cls(request.drafter, request.cohort)


@dataclass(frozen=True, slots=True)
class Times:
    """The latencies of a stream that ended by itself at `ended`, in monotonic seconds."""

    ended: float
    group: StreamGroup
    metrics: RequestMetrics


class Traffic:
    """Counts by group and the latest streams' times. Any thread may note and read."""

    def __init__(self) -> None:
        self.by_group: defaultdict[StreamGroup, SpeculationStats] = defaultdict(SpeculationStats)
        self.times: deque[Times] = deque(maxlen=REMEMBERED)
        self._lock = threading.Lock()

    def note(self, group: StreamGroup, delta: OutputDelta) -> None:
        """Count what a delta of a stream of `group` tells."""
        if delta.round is not None:
            with self._lock:
                self.by_group[group].add(delta.round)
        if delta.metrics is not None and delta.finish_reason in ANSWERED:
            self.times.append(Times(time.monotonic(), group, delta.metrics))

    def copies(self) -> dict[StreamGroup, SpeculationStats]:
        """Return the counts of now, which later rounds do not change."""
        with self._lock:
            return {group: stats.copy() for group, stats in self.by_group.items()}


def total(stats: Iterable[SpeculationStats]) -> SpeculationStats:
    return sum(stats, SpeculationStats())


def quantile_of(ordered: Sequence[float], share: float) -> float:
    """Return a quantile: linear between the two nearest of `ordered`, which is not empty."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
