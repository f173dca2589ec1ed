"""One stream on its way through the engine, and the deltas that come out: tokens, rounds, times."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from paceline.core.params import SamplingParams, SpeculativeParams
from paceline.core.rounds import Round


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Prepared:
    """Base of what an engine derives from a request where it is admitted, once for all choices."""


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One stream of output tokens: a prompt and one choice. The engine owns and mutates it.

    `tokens` is prompt + committed output. `computed` counts the leading tokens whose KV is in the
    cache: rollback of a rejected draft is nothing but leaving `computed` where it is.
    """

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    speculative: SpeculativeParams = field(default_factory=SpeculativeParams)
    choice: int = 0
    seed: int = 0
    salt: bytes = b""  # scope of its cached prefixes
    # whose answers it may draft from, and who may draft from its answer; None: nobody
    answers_scope: bytes | None = None
    key: str = ""  # the name of the API key that it came with
    lossless: bool = True  # no draft can bring text into the output that is not the target's
    eos_ids: frozenset[int] = frozenset()
    max_tokens: int = 0  # resolved bound on output tokens
    prepared: Prepared | None = None  # None: the engine makes it when the choice begins
    leader: Request | None = None  # the first choice of the prompt, whose KV this one will share
    arrival: float = field(default_factory=time.monotonic)

    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    scored: int = 0  # leading rows of the prompt whose log-probabilities are known
    prompt_logprobs: list[TokenLogprobs] | None = None  # wanted, and not handed out yet
    forced_tail: int = 0  # trailing tokens that the grammar forced in the last round
    cached_tokens: int = 0  # prompt tokens found in the prefix cache at first admission
    blocks: list[int] = field(default_factory=list)
    drafter: str | None = None  # the registered drafter it is pinned to; None is AR
    drafter_version: str | None = None  # of that drafter when the request was made
    route: str | None = None  # why it got that drafter; None: it got none
    max_draft_len: int = 0
    policy: str = "throughput"  # what chooses its draft lengths, one of DRAFT_POLICIES
    cohort: str = ""  # requests that behave alike, so that acceptance is counted for them together
    explain: bool = False  # its deltas say what each round did
    held_back: bool | None = None  # kept from drafting, to compare with; None: it set `speculative`
    drafter_failed: bool = False  # its drafter raised an error: it goes on without drafts
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    preemptions: int = 0
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = list(self.prompt_ids)
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = []

    @property
    def prompt_len(self) -> int:
        return len(self.prompt_ids)

    @property
    def prompt_only(self) -> bool:
        """Return whether the request ends with its prompt: no token is chosen."""
        return self.params.max_tokens == 0

    @property
    def unscored(self) -> int:
        """Rows of the prompt whose log-probabilities are wanted and not known yet. Row i gives that
        of token i + 1; the last row belongs to the first output token."""
        if self.params.prompt_logprobs is None:
            return 0
        return self.prompt_len - 1 - self.scored

    @property
    def output_len(self) -> int:
        return len(self.tokens) - len(self.prompt_ids)

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[len(self.prompt_ids) :]

    def output_ids_from(self, start: int) -> list[int]:
        """Output tokens from index `start` on."""
        return self.tokens[len(self.prompt_ids) + start :]

    @property
    def pending(self) -> int:
        """Known tokens that have no KV yet."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        """Return whether only the last chosen token, and what the grammar forced, is pending."""
        return self.pending <= 1 + self.forced_tail

    @property
    def position(self) -> int:
        """Index of the next generated token: the noise position (prompt tokens do not count)."""
        return self.output_len


def draw_seed() -> int:
    """A fresh 64-bit seed for a request that brought none."""
    return secrets.randbits(64)


# -- what the engine gives ------------------------------------------------------------------------


class TokenKind(StrEnum):
    """The reason why a token was committed."""

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
    """Times of one finished stream, seconds. `ttft` is None where it has no token. `tpot` is
    (end - first token) / (n - 1) for n > 1."""

    queue: float
    ttft: float | None
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


class OutputDelta(NamedTuple):
    """The tokens and the text that one step added to one stream.

    `text` is final: held-back text comes later.

    `round` is None where no target forward stands behind the delta: the stream was aborted or has
    failed, or it ends with its prompt. `metrics` come with the last delta of a stream,
    `prompt_logprobs` with the first: one for each token of the prompt but its first.
    """

    request_id: str
    choice: int
    token_ids: tuple[int, ...] = ()
    kinds: tuple[TokenKind, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
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
