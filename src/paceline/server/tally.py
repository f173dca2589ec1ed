"""Counts rounds and times streams by drafter and cohort, from what the streams say as they run.

The engine is not asked: its deltas carry what is counted here, on the event loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate, zip_longest
from operator import add
from typing import Any

from paceline.core import FinishReason, OutputDelta, Request, SpeculationStats

REMEMBERED = 6000  # streams whose times are kept, the latest
Operation = Callable[[Any, Any], Any]


@dataclass(slots=True)
class Lengths:
    """Rounds by draft length, and rounds with a draft by how much of it was accepted: index k
    counts those of k tokens. Tokens that a grammar forced are in neither."""

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, drafted: int, accepted: int) -> None:
        _count(self.drafted, drafted)
        _count(self.accepted, accepted)

    def add_undrafted(self, rounds: int) -> None:
        _count(self.drafted, 0, rounds)

    def combined(self, other: Lengths, operation: Operation) -> Lengths:
        """Count by count."""
        pairs = ((self.drafted, other.drafted), (self.accepted, other.accepted))
        return Lengths(
            *([operation(*both) for both in zip_longest(*pair, fillvalue=0)] for pair in pairs)
        )

    def copy(self) -> Lengths:
        return Lengths(list(self.drafted), list(self.accepted))

    @property
    def rounds(self) -> int:
        return sum(self.drafted)

    @property
    def draft_rounds(self) -> int:
        return sum(self.drafted[1:])

    @property
    def draft_tokens(self) -> int:
        return sum(length * rounds for length, rounds in enumerate(self.drafted))

    @property
    def accepted_tokens(self) -> int:
        return sum(length * rounds for length, rounds in enumerate(self.accepted))

    @property
    def acceptance_length(self) -> float | None:
        """Mean tokens per round with a draft, incl. bonus (AL); None where nothing was drafted."""
        return 1 + self.accepted_tokens / self.draft_rounds if self.draft_rounds else None

    def by_position(self) -> list[tuple[int, int]]:
        """For each position of a draft, from 0: rounds that drafted it, and that accepted it."""
        pairs = zip_longest(_beyond(self.drafted), _beyond(self.accepted), fillvalue=0)
        return list(pairs)


@dataclass(slots=True)
class Tally:
    """What the streams of one drafter and cohort did since the start.

    `seconds` are those of the steps that committed their tokens, and `ar_seconds` of as many steps
    without drafts, by the cost table: a step counts for each stream in it.
    """

    lengths: Lengths = field(default_factory=Lengths)
    parts: dict[str, Lengths] = field(default_factory=dict)  # of a drafter that has several
    tokens: int = 0
    forced: int = 0
    seconds: float = 0.0
    ar_seconds: float = 0.0

    def copy(self) -> Tally:
        parts = {name: lengths.copy() for name, lengths in self.parts.items()}
        counts = (self.tokens, self.forced, self.seconds, self.ar_seconds)
        return Tally(self.lengths.copy(), parts, *counts)

    def combined(self, other: Tally, operation: Operation) -> Tally:
        """Count by count: `operator.sub` for what came since `other`."""
        none = Lengths()
        return Tally(
            self.lengths.combined(other.lengths, operation),
            {
                name: self.parts.get(name, none).combined(other.parts.get(name, none), operation)
                for name in sorted(self.parts.keys() | other.parts.keys())
            },
            operation(self.tokens, other.tokens),
            operation(self.forced, other.forced),
            operation(self.seconds, other.seconds),
            operation(self.ar_seconds, other.ar_seconds),
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Streams that are counted together. No drafter is AR."""

    drafter: str | None
    cohort: str


@dataclass(frozen=True, slots=True)
class Times:
    """One stream that ended by itself: when (monotonic), and its latencies in seconds."""

    ended: float
    group: Group
    queue: float
    ttft: float
    tpot: float | None
    total: float
    held_back: bool | None


@dataclass(slots=True)
class Counted:
    """How much of one stream's own counts is in its group's tally, which is looked up once."""

    tally: Tally | None = None
    rounds: int = 0
    drafts: int = 0
    tokens: int = 0
    forced: int = 0
    seconds: float = 0.0
    ar_seconds: float = 0.0


class Traffic:
    """Tallies by group and the latest streams' times. Belongs to the event loop."""

    def __init__(self) -> None:
        self.tallies: dict[Group, Tally] = {}
        self.times: deque[Times] = deque(maxlen=REMEMBERED)

    def note(self, request: Request, delta: OutputDelta, counted: Counted) -> None:
        """Adds what a stream has done since `counted`, which then says so."""
        if delta.stats is not None:
            tally = counted.tally or self._tally(request)
            _take(tally, delta.stats, counted)
            tally.tokens += delta.completion_tokens - counted.tokens
            counted.tally, counted.tokens = tally, delta.completion_tokens
        metrics = delta.metrics
        if metrics is None or delta.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        group = Group(request.drafter, request.cohort)
        latencies = (metrics.queue, metrics.ttft, metrics.tpot, metrics.total)
        self.times.append(Times(time.monotonic(), group, *latencies, metrics.held_back))

    def _tally(self, request: Request) -> Tally:
        return self.tallies.setdefault(Group(request.drafter, request.cohort), Tally())

    def copies(self) -> dict[Group, Tally]:
        return {group: tally.copy() for group, tally in self.tallies.items()}


def _take(tally: Tally, stats: SpeculationStats, counted: Counted) -> None:
    """The engine may add to `stats` meanwhile: each count is read once, and what is read too early
    to fit the others is made up for by the next delta."""
    drafts, rounds = len(stats.per_step_part), stats.rounds
    for index in range(counted.drafts, drafts):
        drafted, accepted = stats.per_step_drafted[index], stats.per_step_accepted[index]
        tally.lengths.add(drafted, accepted)
        part = stats.per_step_part[index]
        if part is not None:
            tally.parts.setdefault(part, Lengths()).add(drafted, accepted)
    tally.lengths.add_undrafted(rounds - counted.rounds - (drafts - counted.drafts))
    counted.rounds, counted.drafts = rounds, drafts
    forced, seconds, ar_seconds = stats.forced_tokens, stats.seconds, stats.ar_seconds
    tally.forced += forced - counted.forced
    tally.seconds += seconds - counted.seconds
    tally.ar_seconds += ar_seconds - counted.ar_seconds
    counted.forced, counted.seconds, counted.ar_seconds = forced, seconds, ar_seconds


def total(tallies: Iterable[Tally]) -> Tally:
    """All of them together."""
    return reduce(lambda one, other: one.combined(other, add), tallies, Tally())


def _count(counts: list[int], index: int, times: int = 1) -> None:
    counts.extend([0] * (index + 1 - len(counts)))
    counts[index] += times


def _beyond(counts: Sequence[int]) -> Iterator[int]:
    """For each index but the last: the rounds that went further."""
    return reversed(list(accumulate(reversed(counts[1:]))))
