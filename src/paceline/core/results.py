"""The engine's output: deltas with tokens, their kinds, rounds and times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from paceline.core.rounds import Round


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class TokenKind(StrEnum):
    """How a token came to be committed."""

    ACCEPTED = "accepted"  # drafted, and the target agreed
    BONUS = "bonus"  # the target's own: after the last accepted draft, or with no draft at all
    FORCED = "forced"  # the only token that the grammar allowed: no draft and no choice


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, from the raw logits of the row that chose the token."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times of one finished stream, seconds. `tpot` is (end - first token) / (n - 1) for n > 1."""

    queue: float
    ttft: float
    tpot: float | None
    total: float
    held_back: bool | None = None


@dataclass(frozen=True, slots=True)
class ExplainedRound:
    """A round with its token ids, for requests that ask to be explained.

    drafted      token ids that the drafter gave; `verified` those that got a row, with what the
                 grammar forced among them, at the places `forced`. The delta that carries the
                 round has what was committed.
    confidence   the drafter's own, for each proposed token that fits the grammar; None: unknown
    hidden       drafted tokens that are left out. A draft that was looked up in the text of other
                 requests shows only what was committed, in all of these fields.
    """

    drafted: tuple[int, ...]
    verified: tuple[int, ...]
    forced: tuple[int, ...]
    confidence: tuple[float, ...] | None
    hidden: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDelta:
    """The tokens and the text that one step added to one stream.

    `text` is final: held-back text comes later.

    `round` is None where no target forward stands behind the delta: the stream was aborted or has
    failed. `metrics` come with the last delta of a stream.
    """

    request_id: str
    choice: int
    token_ids: tuple[int, ...] = ()
    kinds: tuple[TokenKind, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seed: int = 0
    round: Round | None = None
    explained: ExplainedRound | None = None  # for requests that ask to be explained
    metrics: RequestMetrics | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None
