"""Rounds, and the one fold that every count, rate and acceptance length comes from.

The engine makes one Round for each stream and step. Requests' own statistics, the server's metrics,
benchmarks and evaluations all add those up in a SpeculationStats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple, Self

AR = "ar"  # the side of an evaluation that runs without speculation
Row = Mapping[str, Any]  # one prompt of an evaluation, as its JSON has it


class CutReason(StrEnum):
    """Says why a round verified fewer draft tokens than its request had asked for."""

    PROMPT = "prompt"  # the step computed the prompt: there was nothing to draft from
    OFF = "off"  # speculation is off for the request
    HELD_BACK = "held back"  # it runs without drafts, for others to be compared with
    FAILED = "failed"  # the drafter raised an error
    ROOM = "room"  # rows of the step, blocks, or tokens until the end of the stream
    CONTEXT = "context"  # the text is longer than the drafter can draft for
    NOTHING = "drafter"  # the drafter had nothing to propose
    GRAMMAR = "grammar"  # the draft left the grammar
    COST = "cost"  # more rows would not have paid
    REST = "rest"  # the request's drafts did not pay lately: it pauses


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """Facts that all rounds of one stream share.

    cohort      what acceptance is counted together for
    drafter     and its version; None where the stream is decoded without drafts
    rule        verification rule
    grammar     whether a grammar bounds the output
    """

    request: str
    cohort: str
    drafter: str | None
    version: str | None
    rule: str
    temperature: float
    grammar: bool


class StepInfo(NamedTuple):
    """Facts that all rounds of one step share.

    time            seconds since the epoch, at the end of the step
    requests        in the step, and all their `rows`
    draft_seconds   spent on drafting for all of them; `seconds` on everything else
    """

    time: float
    requests: int
    rows: int
    draft_seconds: float
    seconds: float


class Round(NamedTuple):
    """One target forward that committed tokens to one stream: drafted or not.

    position        index of the first output token that the round committed
    drafted         draft tokens that were verified; what a grammar forced is in `forced`
    accepted        draft tokens that stand
    bonus           whether the target's own token followed them: not where the text ended inside
                    the draft, nor where the grammar left no choice
    forced          tokens committed because the grammar left no choice
    proposed        tokens that the drafter gave; `verified` of these, and of what the grammar
                    forced among them, that got a row
    part            of a drafter that has several: the one that made the draft
    cut_by          why fewer were verified than the request asked for; None where nothing did
    seconds         of the step, drafting included; `ar_seconds` of as many steps without drafts
    distance        under a lossy budget: the total variation that the round used
    replaced        draft tokens that stand in place of another one of the target's
    beside          of a draft with alternatives: tokens that had a row beside those of its longest
                    path, which `drafted` and `verified` count
    """

    position: int
    drafted: int
    accepted: int
    bonus: bool = True
    forced: int = 0
    proposed: int = 0
    verified: int = 0
    part: str | None = None
    cut_by: CutReason | None = None
    seconds: float = 0.0
    ar_seconds: float = 0.0
    distance: float = 0.0
    replaced: int = 0
    stream: StreamInfo | None = None
    step: StepInfo | None = None
    beside: int = 0

    @property
    def tokens(self) -> int:
        """All committed tokens."""
        return self.accepted + self.bonus + self.forced

    def judged(self) -> Round:
        """The round without the draft tokens behind the end of the text, which nobody judged.

        The last committed token then stands for the bonus token.
        """
        if self.bonus:
            return self
        accepted = max(0, self.accepted - 1)
        return self._replace(drafted=accepted, accepted=accepted, bonus=True)


def acceptance_length(accepted: int, rounds: int) -> float | None:
    """Return the mean tokens of `rounds` rounds that accepted `accepted` draft tokens in all, the
    bonus token of each included (AL); None where there is no round."""
    return 1 + accepted / rounds if rounds else None


@dataclass(slots=True)
class SpeculationStats:
    """The fold of rounds: counts, and the rates that follow from them.

    rounds_by_draft_length[k]   rounds that verified k draft tokens
    rounds_by_accepted[k]       rounds with a draft of which k tokens stand
    tokens                      committed tokens, `forced_tokens` of them by a grammar
    distance, replaced_tokens   under a lossy budget: sums over the rounds
    seconds, ar_seconds         sums over the rounds: a step counts for each stream in it
    parts                       the drafted rounds of each part of a drafter that has several
    """

    rounds_by_draft_length: list[int] = field(default_factory=list)
    rounds_by_accepted: list[int] = field(default_factory=list)
    tokens: int = 0
    forced_tokens: int = 0
    distance: float = 0.0
    replaced_tokens: int = 0
    seconds: float = 0.0
    ar_seconds: float = 0.0
    parts: dict[str, SpeculationStats] = field(default_factory=dict)

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> Self:
        stats = cls()
        for round in rounds:
            stats.add(round)
        return stats

    def add(self, round: Round) -> None:
        """Count one round."""
        self._count(round)
        if round.part is not None and round.drafted:
            part = self.parts.get(round.part)
            if part is None:
                part = self.parts[round.part] = SpeculationStats()
            part._count(round)

    def copy(self) -> SpeculationStats:
        """Return a value that later rounds do not change."""
        return self + SpeculationStats()

    def __add__(self, other: SpeculationStats) -> SpeculationStats:
        return self._combined(other, 1)

    def __sub__(self, other: SpeculationStats) -> SpeculationStats:
        """Return the counts of what came since `other`, an earlier copy."""
        return self._combined(other, -1)

    @property
    def rounds(self) -> int:
        return sum(self.rounds_by_draft_length)

    @property
    def draft_rounds(self) -> int:
        return sum(self.rounds_by_draft_length[1:])

    @property
    def draft_tokens(self) -> int:
        return sum(k * rounds for k, rounds in enumerate(self.rounds_by_draft_length))

    @property
    def accepted_tokens(self) -> int:
        return sum(k * rounds for k, rounds in enumerate(self.rounds_by_accepted))

    @property
    def acceptance_length(self) -> float | None:
        """AL of the rounds with a draft, the bonus token included. None where nothing was drafted.

        This is what dashboards make of vLLM's counters. It counts a bonus token for the last round
        of a text too; Round.judged() is for those who want that exact. Tokens that a grammar forced
        are no merit of a draft.
        """
        return acceptance_length(self.accepted_tokens, self.draft_rounds)

    @property
    def acceptance_rate(self) -> float | None:
        """Draft tokens that stand ÷ draft tokens; None where nothing was drafted."""
        return ratio([self.accepted_tokens], [self.draft_tokens])

    @property
    def draft_length(self) -> float | None:
        """Mean draft length over all rounds, those without a draft included; None without any."""
        return ratio([self.draft_tokens], [self.rounds])

    @property
    def tokens_per_round(self) -> float | None:
        """The same over all rounds, those without a draft included; None where there is none."""
        return acceptance_length(self.accepted_tokens, self.rounds)

    @property
    def speedup_vs_ar(self) -> float | None:
        """Seconds that the tokens would have taken without drafts ÷ seconds that they took; None
        before anything was timed."""
        return ratio([self.ar_seconds], [self.seconds])

    def by_position(self) -> list[tuple[int, int]]:
        """For each position of a draft, from 0: rounds that drafted it, and that accepted it."""
        drafted, accepted = self.rounds_by_draft_length, self.rounds_by_accepted
        return list(zip_longest(_beyond(drafted), _beyond(accepted), fillvalue=0))

    def _count(self, round: Round) -> None:
        drafted, accepted = round.drafted, round.accepted
        lengths = self.rounds_by_draft_length
        if drafted < len(lengths):
            lengths[drafted] += 1
        else:
            _increase(lengths, drafted)
        if drafted:
            _increase(self.rounds_by_accepted, accepted)
        self.tokens += accepted + round.bonus + round.forced
        self.forced_tokens += round.forced
        self.distance += round.distance
        self.replaced_tokens += round.replaced
        self.seconds += round.seconds
        self.ar_seconds += round.ar_seconds

    def _combined(self, other: SpeculationStats, sign: int) -> SpeculationStats:
        nothing = SpeculationStats()
        return SpeculationStats(
            _sums(self.rounds_by_draft_length, other.rounds_by_draft_length, sign),
            _sums(self.rounds_by_accepted, other.rounds_by_accepted, sign),
            self.tokens + sign * other.tokens,
            self.forced_tokens + sign * other.forced_tokens,
            self.distance + sign * other.distance,
            self.replaced_tokens + sign * other.replaced_tokens,
            self.seconds + sign * other.seconds,
            self.ar_seconds + sign * other.ar_seconds,
            {
                name: self.parts.get(name, nothing)._combined(other.parts.get(name, nothing), sign)
                for name in sorted(self.parts.keys() | other.parts.keys())
            },
        )


# -- rounds of evaluations -------------------------------------------------------------------------

LONGEST_DRAFT = 65_536  # tokens of a draft in a file; far beyond any drafter's


def counted_rounds(row: Row, side: str, *, tokens: int, block: int = 0) -> list[Round]:
    """Return the rounds that start before the text loops, and a whole `block` before `tokens`.

    Raises ValueError for a round that no drafter makes: the counts size the lists of a fold.
    """
    end = min(row["counted_tokens"], tokens - block)
    rounds = [Round(*values) for values in row["rounds"][side]]
    for round in rounds:
        if not 0 <= round.accepted <= round.drafted <= LONGEST_DRAFT:
            raise ValueError(f"{round.accepted} of {round.drafted} drafted tokens accepted")
    return [round for round in rounds if round.position < end]


def ratio(above: Sequence[float], below: Sequence[float]) -> float | None:
    """Sum ÷ sum; None where there is nothing."""
    total = sum(below)
    return sum(above) / total if total else None


def tokens_per_round(rows: Sequence[Row], side: str, *, tokens: int) -> float | None:
    """Return the tokens that a counted round of `rows` committed, the bonus token included.

    Rounds without a draft count too. None where there is no round.
    """
    rounds = (round for row in rows for round in counted_rounds(row, side, tokens=tokens))
    return SpeculationStats.of(rounds).tokens_per_round


def speedup_points(
    rows: Iterable[Row], side: str, *, tokens: int
) -> list[tuple[float, float, str]]:
    """(tokens per round, speedup over AR, prompt) of each request that was timed."""
    points = []
    for row in rows:
        plain, drafted = (row["seconds"].get(name, [None]) for name in (AR, side))
        if None in plain or None in drafted:
            continue
        per_round = tokens_per_round([row], side, tokens=tokens)
        speedup = ratio(plain, drafted)
        if speedup is not None and per_round is not None:
            points.append((per_round, speedup, str(row["prompt"])))
    return points


def _increase(counts: list[int], index: int) -> None:
    if index >= len(counts):
        counts.extend([0] * (index + 1 - len(counts)))
    counts[index] += 1


def _sums(counts: Sequence[int], others: Sequence[int], sign: int) -> list[int]:
    return [a + sign * b for a, b in zip_longest(counts, others, fillvalue=0)]


def _beyond(counts: Sequence[int]) -> Iterator[int]:
    """For each index but the last: the rounds that went further."""
    return reversed(list(accumulate(reversed(counts[1:]))))
