"""One measured answer: its tokens, when each arrived, and what speculation did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.core import TokenKind
from paceline.core.rounds import Round, acceptance_length


class DraftCounts(NamedTuple):
    """Rounds that had a draft, and tokens verified and accepted in them."""

    rounds: int
    tokens: int
    accepted: int

    @classmethod
    def total(cls, counts: Iterable[DraftCounts]) -> DraftCounts:
        return cls(*map(sum, zip((0, 0, 0), *counts, strict=True)))

    @property
    def acceptance_length(self) -> float | None:
        """AL of these rounds, the bonus token included; None where nothing was drafted."""
        return acceptance_length(self.accepted, self.rounds)


NOTHING_DRAFTED = DraftCounts(0, 0, 0)


@dataclass(slots=True)
class MeasuredAnswer:
    """One streamed answer. Times are seconds on one monotonic clock.

    `arrivals[i]` is when token i reached the reader; tokens of one step share a time. `drafted`
    counts the rounds that had a draft, and `parts` those of each part of a drafter with several.
    `rounds` and `kinds`, how each token came to be, are there for an engine in this process.
    `logprobs` are there where they were asked for; `distance` (total variation) and
    `replaced_tokens` belong to lossy budgets.
    """

    started: float
    token_ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    drafted: DraftCounts = NOTHING_DRAFTED
    parts: dict[str, DraftCounts] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    kinds: list[TokenKind] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    distance: float = 0.0
    replaced_tokens: int = 0

    @property
    def ttft(self) -> float:
        """Seconds from sending the request to its first token."""
        return self.arrivals[0] - self.started

    @property
    def total(self) -> float:
        return self.arrivals[-1] - self.started

    def tpot(self, count: int | None = None) -> float:
        """Return the seconds per output token after the first, over the first `count` tokens (all
        by default); NaN with fewer than two tokens."""
        last = len(self.arrivals) if count is None else min(count, len(self.arrivals))
        if last < 2:
            return float("nan")
        return (self.arrivals[last - 1] - self.arrivals[0]) / (last - 1)

    @property
    def acceptance_length(self) -> float | None:
        return self.drafted.acceptance_length
