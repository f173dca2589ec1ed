"""Counts of rounds and times of streams by drafter and cohort, from the deltas as they come."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from paceline.core import FinishReason, OutputDelta, Request, RequestMetrics, SpeculationStats

ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)  # of streams that ended by themselves
REMEMBERED = 6000  # streams whose times are kept, the latest
MOST_GROUPS = 512  # that are counted for themselves; of others only sums are kept
Version = tuple[str | None, str | None]  # the name and the version of a drafter
Key = TypeVar("Key")
Counts = TypeVar("Counts", SpeculationStats, "GroupCounts")


@dataclass(frozen=True, slots=True)
class StreamGroup:
    """Streams that are counted together. No drafter is AR."""

    drafter: str | None
    cohort: str
    version: str | None = None

    @classmethod
    def of(cls, request: Request) -> Self:
        return cls(request.drafter, request.cohort, request.drafter_version)

    @property
    def of_version(self) -> Version:
        return self.drafter, self.version

    @property
    def series(self) -> StreamGroup:
        """The group that it is shown with: versions under one name have one series."""
        return replace(self, version=None)


@dataclass(frozen=True, slots=True)
class Times:
    """The latencies of a stream that ended by itself at `ended`, in monotonic seconds."""

    ended: float
    group: StreamGroup
    metrics: RequestMetrics


@dataclass(slots=True)
class GroupCounts:
    """Streams of one group that ended: `answered` by themselves, or `failed`. The seconds are sums
    over the answered; `begun` of them have a TTFT and `timed` a TPOT."""

    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    answered: int = 0
    failed: int = 0
    begun: int = 0
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
            if times.ttft is not None:
                self.begun += 1
                self.ttft_seconds += times.ttft
            if times.tpot is not None:
                self.timed += 1
                self.tpot_seconds += times.tpot

    def __add__(self, other: GroupCounts) -> GroupCounts:
        return GroupCounts(
            self.speculation + other.speculation,
            self.answered + other.answered,
            self.failed + other.failed,
            self.begun + other.begun,
            self.timed + other.timed,
            self.ttft_seconds + other.ttft_seconds,
            self.tpot_seconds + other.tpot_seconds,
            max(self.latest, other.latest),
        )


class Traffic:
    """Counts by group and the latest streams' times. Any thread may note and read.

    Of a group that is no longer counted for itself, sums are kept as long as others are shown with
    it, so that no counter falls: `_of_series` for the groups of its series, `_of_version` for its
    drafter. `_gone` is of drafters that have left.
    """

    def __init__(self) -> None:
        self.by_group: dict[StreamGroup, GroupCounts] = {}
        self.times: deque[Times] = deque(maxlen=REMEMBERED)
        self._of_series: dict[StreamGroup, GroupCounts] = {}
        self._of_version: dict[Version, SpeculationStats] = {}
        self._gone = SpeculationStats()
        self._lock = threading.Lock()

    def note(self, group: StreamGroup, delta: OutputDelta) -> None:
        """Count what a delta of a stream of `group` tells."""
        with self._lock:
            counts = self.by_group.get(group) or self._new(group)
            counts.add(delta)
        if delta.metrics is not None and delta.finish_reason in ANSWERED:
            self.times.append(Times(time.monotonic(), group, delta.metrics))

    def by_series(self) -> Mapping[StreamGroup, GroupCounts]:
        """Return the counts of now by `series`, which later deltas do not change."""
        with self._lock:
            pairs = [(group.series, counts) for group, counts in self.by_group.items()]
            return sums([*pairs, *self._of_series.items()], GroupCounts())

    def by_version(self) -> Mapping[Version, SpeculationStats]:
        """Return the rounds of each drafter."""
        with self._lock:
            pairs = [(group.of_version, each.speculation) for group, each in self.by_group.items()]
            return sums([*pairs, *self._of_version.items()], SpeculationStats())

    def sampled(self) -> tuple[dict[StreamGroup, SpeculationStats], SpeculationStats]:
        """Return copies of the rounds of each group, and their sum over all groups there ever
        were."""
        with self._lock:
            groups = {group: each.speculation.copy() for group, each in self.by_group.items()}
            return groups, total([*groups.values(), *self._of_version.values(), self._gone])

    def _new(self, group: StreamGroup) -> GroupCounts:
        """Begin to count a group; at the bound, in place of the one that ended its last stream
        longest ago."""
        counts = self.by_group[group] = GroupCounts(latest=time.monotonic())
        if len(self.by_group) > MOST_GROUPS:
            self._drop(min(self.by_group, key=lambda each: self.by_group[each].latest))
        return counts

    def sum_up(self, loaded: Collection[Version], before: float) -> None:
        """Keep no longer apart the groups of drafters that are not `loaded` and were used last
        `before` that time: drafters come and go as long as a server runs."""
        kept = {*loaded, (None, None)}
        with self._lock:
            for group, counts in list(self.by_group.items()):
                if group.of_version not in kept and counts.latest < before:
                    self._drop(group)
            kept.update(group.of_version for group in self.by_group)
            for version in self._of_version.keys() - kept:
                self._gone += self._of_version.pop(version)

    def _drop(self, group: StreamGroup) -> None:
        """Count a group no longer for itself."""
        counts, series, version = self.by_group.pop(group), group.series, group.of_version
        before = self._of_version.get(version, SpeculationStats())
        self._of_version[version] = before + counts.speculation
        earlier = self._of_series.pop(series, GroupCounts())
        if any(other.series == series for other in self.by_group):
            self._of_series[series] = earlier + counts


def sums(pairs: Iterable[tuple[Key, Counts]], nothing: Counts) -> dict[Key, Counts]:
    """Return the sum of the counts of each key."""
    added: dict[Key, Counts] = {}
    for key, counts in pairs:
        added[key] = added.get(key, nothing) + counts
    return added


def total(stats: Iterable[SpeculationStats]) -> SpeculationStats:
    return sum(stats, SpeculationStats())


def quantile_of(ordered: Sequence[float], share: float) -> float:
    """Return a quantile: linear between the two nearest of `ordered`, which is not empty."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
