"""What one measured answer was: its tokens, when each arrived, and what speculation did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.core import TokenKind
from paceline.core.rounds import Round


class PartCounts(NamedTuple):
    """What one part of a drafter drafted: rounds, and tokens verified and accepted in them."""

    rounds: int
    tokens: int
    accepted: int


@dataclass(slots=True)
class MeasuredAnswer:
    """One streamed answer. Times are seconds on one monotonic clock.

    `arrivals[i]` is when token i reached the reader; tokens of one step share a time. `accepted`
    counts drafted tokens that were committed and `draft_rounds` the rounds that had a draft; where
    the drafter has several parts, `parts` counts both for each. `rounds` and `kinds`, how each
    token came to be, are there for an engine in this process.
    `logprobs` are there where they were asked for; `distance` (total variation) and
    `replaced_tokens` belong to lossy budgets.
    """

    started: float
    token_ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    draft_rounds: int = 0
    accepted: int = 0
    draft_tokens: int = 0
    parts: dict[str, PartCounts] = field(default_factory=dict)
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
        """Seconds per output token after the first, over the first `count` tokens (all by default).

        nan with fewer than two tokens.
        """
        last = len(self.arrivals) if count is None else min(count, len(self.arrivals))
        if last < 2:
            return float("nan")
        return (self.arrivals[last - 1] - self.arrivals[0]) / (last - 1)

    @property
    def acceptance_length(self) -> float:
        """Tokens committed per drafted round, including the bonus token (AL); 1 with no draft."""
        return 1 + self.accepted / self.draft_rounds if self.draft_rounds else 1.0

    @property
    def tokens_per_forward(self) -> float:
        """Tokens committed per target forward, forwards without a draft included."""
        forwards = len(self.token_ids) - self.accepted
        return len(self.token_ids) / forwards if forwards > 0 else 1.0
