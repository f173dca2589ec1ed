"""Counts of rounds and times of streams by drafter and cohort, from the deltas as they come."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from paceline.core import FinishReason, OutputDelta, Request, RequestMetrics, SpeculationStats

ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)  # of streams that ended by themselves
REMEMBERED = 6000  # streams whose times are kept, the latest
MOST_GROUPS = 512  # that are counted for themselves; of others only the sum is kept


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


@dataclass(slots=True)
class GroupCounts:
    """Streams of one group that ended: `answered` by themselves, or `failed`. The seconds are sums
    over the answered; `timed` of them have a TPOT."""

    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    answered: int = 0
    failed: int = 0
    timed: int = 0
    ttft_seconds: float = 0.0
    tpot_seconds: float = 0.0
    latest: float = 0.0  # monotonic seconds

    def add(self, delta: OutputDelta) -> None:
        """Count a delta."""
        if delta.round is not None:
            self.speculation.add(delta.round)
        if delta.finish_reason is None:
            return
        self.latest = time.monotonic()
        self.failed += delta.finish_reason is FinishReason.ERROR
        times = delta.metrics
        if times is not None and delta.finish_reason in ANSWERED:
            self.answered += 1
            self.ttft_seconds += times.ttft
            if times.tpot is not None:
                self.timed += 1
                self.tpot_seconds += times.tpot

    def copy(self) -> GroupCounts:
        """Return a value that later deltas do not change."""
        return replace(self, speculation=self.speculation.copy())


class Traffic:
    """Counts by group and the latest streams' times. Any thread may note and read."""

    def __init__(self) -> None:
        self.by_group: dict[StreamGroup, GroupCounts] = {}
        self.times: deque[Times] = deque(maxlen=REMEMBERED)
        self._gone = SpeculationStats()  # of groups that are not counted for themselves any more
        self._lock = threading.Lock()

    def note(self, group: StreamGroup, delta: OutputDelta) -> None:
        """Count what a delta of a stream of `group` tells."""
        with self._lock:
            counts = self.by_group.get(group) or self._new(group)
            counts.add(delta)
        if delta.metrics is not None and delta.finish_reason in ANSWERED:
            self.times.append(Times(time.monotonic(), group, delta.metrics))

    def copies(self) -> Mapping[StreamGroup, GroupCounts]:
        """Return the counts of now, which later deltas do not change."""
        with self._lock:
            return {group: counts.copy() for group, counts in self.by_group.items()}

    def sampled(self) -> tuple[dict[StreamGroup, SpeculationStats], SpeculationStats]:
        """Return copies of the rounds of each group, and their sum over all groups there ever
        were."""
        with self._lock:
            groups = {group: each.speculation.copy() for group, each in self.by_group.items()}
            return groups, total([*groups.values(), self._gone])

    def _new(self, group: StreamGroup) -> GroupCounts:
        """Begin to count a group; at the bound, in place of the one that ended its last stream
        longest ago."""
        if len(self.by_group) >= MOST_GROUPS:
            oldest = min(self.by_group, key=lambda each: self.by_group[each].latest)
            self._gone += self.by_group.pop(oldest).speculation
        counts = self.by_group[group] = GroupCounts(latest=time.monotonic())
        return counts


def total(stats: Iterable[SpeculationStats]) -> SpeculationStats:
    return sum(stats, SpeculationStats())


def quantile_of(ordered: Sequence[float], share: float) -> float:
    """Return a quantile: linear between the two nearest of `ordered`, which is not empty."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
