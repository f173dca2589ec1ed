"""What comes out: tokens and how they came to be, counts, times, rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class TokenKind(StrEnum):
    """How a token came to be committed."""

    ACCEPTED = "accepted"  # drafted, and the target agreed
    BONUS = (
        "bonus"  # the target's own token: after the last accepted draft, or with no draft at all
    )
    FORCED = "forced"  # the only token that the grammar allowed: no draft and no choice


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, from the raw logits of the row that chose the token."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class SpeculationStats:
    """Counts of one request's rounds: a draft and the target forward that verifies it."""

    rounds: int = 0  # target forwards that committed tokens, drafted or not
    draft_rounds: int = 0  # rounds with at least one draft token
    draft_tokens: int = 0
    accepted_tokens: int = 0
    forced_tokens: int = 0  # by the grammar; in none of the other counts
    distance: float = 0.0  # under a lossy budget: sum of the total variation used
    replaced_tokens: int = 0  # accepted in place of another one of the target's
    per_step_drafted: list[int] = field(default_factory=list)
    per_step_accepted: list[int] = field(default_factory=list)
    per_step_part: list[str | None] = field(default_factory=list)  # of a drafter that has several
    seconds: float = 0.0  # of the steps that committed its tokens, drafting included
    ar_seconds: float = 0.0  # of as many steps without drafts, by the cost table

    def record(self, drafted: int, accepted: int, part: str | None = None) -> None:
        self.rounds += 1
        if drafted:
            self.draft_rounds += 1
            self.draft_tokens += drafted
            self.accepted_tokens += accepted
            self.per_step_drafted.append(drafted)
            self.per_step_accepted.append(accepted)
            self.per_step_part.append(part)

    def add(self, other: SpeculationStats) -> None:
        """Counts another request's drafted rounds as well."""
        for drafted, accepted, part in other._steps():
            self.record(drafted, accepted, part)

    def by_part(self) -> dict[str, SpeculationStats]:
        """The drafted rounds of each part of a drafter that has several; else nothing."""
        parts: dict[str, SpeculationStats] = {}
        for drafted, accepted, part in self._steps():
            if part is not None:
                parts.setdefault(part, SpeculationStats()).record(drafted, accepted)
        return parts

    @property
    def acceptance_length(self) -> float:
        """Mean tokens committed per drafted round, including the bonus token (AL); 1.0 with no
        drafts."""
        return 1.0 + self.accepted_tokens / self.draft_rounds if self.draft_rounds else 1.0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def speedup_vs_ar(self) -> float:
        """Time its tokens would have taken without anybody's drafts / time they took; 1.0 before
        anything is known."""
        return self.ar_seconds / self.seconds if self.seconds else 1.0

    def histogram(self) -> list[int]:
        """Rounds by number of accepted draft tokens; index 0 counts rounds that accepted none."""
        counts = [0] * (max(self.per_step_drafted, default=-1) + 1)
        for accepted in self.per_step_accepted:
            counts[accepted] += 1
        return counts

    def _steps(self) -> Iterator[tuple[int, int, str | None]]:
        return zip(self.per_step_drafted, self.per_step_accepted, self.per_step_part, strict=True)


@dataclass(slots=True)
class RequestMetrics:
    """Times of one finished stream, seconds. tpot is (end - first token) / (n - 1), None when n <
    2. `held_back` is the request's own."""

    queue: float
    ttft: float
    tpot: float | None
    total: float
    held_back: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """What one round did for one stream. Counts are tokens, times milliseconds unless said.

    time            seconds since the epoch, at the end of the step
    cohort          of the request: what acceptance is counted together for
    drafter         and its version; None where the request drafts with nobody
    part            of the drafter that made the draft: of `auto` "suffix" or "ngram", of `hybrid`
                    "dflash" as well; None without a draft, and for a drafter of one piece
    position        index of the first output token that the round committed
    proposed        tokens that the drafter gave
    verified        of these, and of what the grammar forced among them, that got a row
    accepted        drafted tokens that stand, forced ones not counted
    forced          tokens committed because the grammar left no choice
    cut_by          why fewer were verified than there was room for; None where all were
    confidence      the drafter's own, for each proposed token that fits the grammar; None: unknown.
                    Of a draft from other requests' text, for the committed tokens alone
    rule            verification rule
    step_requests   requests in the same step, and step_rows, all their rows
    draft_ms        spent on drafting for all of them; step_ms on everything else
    """

    request: str
    time: float
    cohort: str
    drafter: str | None
    version: str | None
    part: str | None
    position: int
    proposed: int
    verified: int
    accepted: int
    forced: int
    cut_by: str | None
    confidence: tuple[float, ...] | None
    rule: str
    temperature: float
    grammar: bool
    step_requests: int
    step_rows: int
    draft_ms: float
    step_ms: float


@dataclass(frozen=True, slots=True)
class ExplainedRound:
    """A round's record with its token ids. `forced` are the places in `verified` that a grammar
    left no choice about; what was committed is in the delta that carries this.

    Of a draft that was looked up in other requests' text, `drafted`, `verified`, `forced` and the
    record's `confidence` hold only what was committed; `hidden` counts the drafted tokens that are
    left out. The record's counts are those of the whole draft.
    """

    record: RoundRecord
    drafted: tuple[int, ...]
    verified: tuple[int, ...]
    forced: tuple[int, ...]
    hidden: int = 0


@dataclass(slots=True, kw_only=True)
class OutputDelta:
    """What one step added to one stream. `text` is final: held-back text comes later."""

    request_id: str
    choice: int
    token_ids: list[int] = field(default_factory=list)
    kinds: list[TokenKind] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    # the rest is set on every delta, final with the last one
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seed: int = 0
    stats: SpeculationStats | None = None
    metrics: RequestMetrics | None = None
    round: ExplainedRound | None = None  # for requests that want to be explained

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None
