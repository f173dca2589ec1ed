"""Counts rounds and times streams by drafter and cohort, from the deltas as they come."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.core import FinishReason, OutputDelta, Request, SpeculationStats

REMEMBERED = 6000  # streams whose times are kept, the latest


@dataclass(frozen=True, slots=True)
class StreamGroup:
    """Streams that are counted together. No drafter is AR."""

    drafter: str | None
    cohort: str


@dataclass(frozen=True, slots=True)
class Times:
    """One stream that ended by itself: when (monotonic), and its latencies in seconds."""

    ended: float
    group: StreamGroup
    queue: float
    ttft: float
    tpot: float | None
    total: float
    held_back: bool | None


class Traffic:
    """Counts by group and the latest streams' times. Belongs to the event loop."""

    def __init__(self) -> None:
        self.by_group: dict[StreamGroup, SpeculationStats] = {}
        self.times: deque[Times] = deque(maxlen=REMEMBERED)

    def note(self, request: Request, delta: OutputDelta) -> None:
        """Count what a delta of `request` tells."""
        if delta.round is not None:
            self._stats(StreamGroup(request.drafter, request.cohort)).add(delta.round)
        metrics = delta.metrics
        if metrics is None or delta.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        group = StreamGroup(request.drafter, request.cohort)
        latencies = (metrics.queue, metrics.ttft, metrics.tpot, metrics.total)
        self.times.append(Times(time.monotonic(), group, *latencies, metrics.held_back))

    def copies(self) -> dict[StreamGroup, SpeculationStats]:
        """The counts of now, which later rounds do not change."""
        return {group: stats.copy() for group, stats in self.by_group.items()}

    def _stats(self, group: StreamGroup) -> SpeculationStats:
        stats = self.by_group.get(group)
        if stats is None:
            stats = self.by_group[group] = SpeculationStats()
        return stats


def total(stats: Iterable[SpeculationStats]) -> SpeculationStats:
    """All of them together."""
    return sum(stats, SpeculationStats())
