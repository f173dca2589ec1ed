"""One measured answer: its tokens, when each arrived, and what speculation did."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.core import Round, SpeculationStats, TokenKind
from paceline.core.rounds import acceptance_length


class DraftCounts(NamedTuple):
    """Rounds that had a draft, and tokens verified and accepted in them."""

    rounds: int = 0
    tokens: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, stats: SpeculationStats) -> DraftCounts:
        return cls(stats.draft_rounds, stats.draft_tokens, stats.accepted_tokens)

    @classmethod
    def total(cls, counts: Iterable[DraftCounts]) -> DraftCounts:
        return cls(*map(sum, zip((0, 0, 0), *counts, strict=True)))

    @property
    def acceptance_length(self) -> float | None:
        """AL of these rounds, the bonus token included; None where nothing was drafted."""
        return acceptance_length(self.accepted, self.rounds)


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
    drafted: DraftCounts = field(default_factory=DraftCounts)
    parts: dict[str, DraftCounts] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    kinds: list[TokenKind] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    distance: float = 0.0
    replaced_tokens: int = 0

    def extend(self, token_ids: Sequence[int], text: str) -> None:
        """Add tokens that arrive now, and their text."""
        now = time.perf_counter()
        self.token_ids += token_ids
        self.arrivals += [now] * len(token_ids)
        self.text += text

    @property
    def ttft(self) -> float:
        """Seconds from sending the request to its first token."""
        return self.arrivals[0] - self.started

    @property
    def total(self) -> float:
        return self.arrivals[-1] - self.started

    def tpot(self, count: int | None = None) -> float:
        """Return seconds per token after the first, over `count` tokens; NaN for fewer than two."""
        arrivals = self.arrivals[:count]
        if len(arrivals) < 2:
            return math.nan
        return (arrivals[-1] - arrivals[0]) / (len(arrivals) - 1)

    @property
    def acceptance_length(self) -> float | None:
        return self.drafted.acceptance_length
