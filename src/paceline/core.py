"""Dataclasses that every room shares: what is asked, what is drafted, what was decided.

No tensors and no torch here. Lengths are in tokens, times in seconds unless a name says otherwise.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MAX_DRAFT_LEN = 64
MAX_LOGPROBS = 20
GRAMMAR_KINDS = ("json_schema", "regex", "lark")
DRAFT_POLICIES = ("throughput", "fixed", "ema", "off")


class PacelineError(Exception):
    """Base of every error that Paceline raises on purpose."""


class InvalidRequest(PacelineError, ValueError):
    """A field holds a value that cannot be honoured. Nothing that is running is affected.

    `field` is the name as the user wrote it; the message gives the value and what would be right.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field, self.value, self.expected = field, value, expected
        shown = repr(value)
        shown = shown if len(shown) <= 120 else shown[:117] + "..."
        super().__init__(f"{field}: got {shown}; expected {expected}")


class ModelError(PacelineError, ValueError):
    """A model folder, file or config that cannot be served; the message names what and why."""


class QueueFull(PacelineError):
    """The engine's waiting queue is at its bound. `retry_after` is a hint in seconds."""

    def __init__(self, waiting: int, retry_after: float) -> None:
        self.waiting, self.retry_after = waiting, retry_after
        super().__init__(f"{waiting} requests are waiting already; retry in {retry_after:.0f} s")


def _number(field: str, value: Any, low: float, high: float, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequest(field, value, expected)
    if not low <= value <= high:
        raise InvalidRequest(field, value, expected)


def _integer(field: str, value: Any, low: int, high: int, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(field, value, expected)


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an output must conform to: `source`, written in the language `kind`.

    kind    "json_schema" (JSON text of the schema), "regex" or "lark" (llguidance's dialect)
    field   the name under which the user gave it; errors quote places below it
    """

    kind: str
    source: str
    field: str = field(default="grammar", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in GRAMMAR_KINDS:
            raise InvalidRequest("grammar.kind", self.kind, "one of " + ", ".join(GRAMMAR_KINDS))
        if not isinstance(self.source, str) or not self.source:
            raise InvalidRequest(self.field, self.source, "text, not empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are chosen. Validated on construction.

    The target's token is argmax(logits / temperature + Gumbel(seed, choice, position, token id));
    temperature 0 is plain argmax. `top_k` 0 means off. `logprobs` None means none, k >= 0 asks for
    the chosen token's log-probability and those of the k most likely tokens, from the raw model
    logits; a token that the grammar forced had no choice, and reports 0. `seed` None draws a 64-bit
    seed, which results report. `grammar` bounds what may be said; it decides when the output ends,
    so it goes with neither `ignore_eos` nor `min_tokens`.

    Raises InvalidRequest, naming the field.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    seed: int | None = None
    logprobs: int | None = None
    skip_special_tokens: bool = True
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0, 100, "a number from 0 to 100")
        if 0 < self.temperature < 1e-4:
            raise InvalidRequest("temperature", self.temperature, "0 (argmax) or at least 0.0001")
        _integer("top_k", self.top_k, -1, 2**31 - 1, "a whole number; 0 or -1 switches it off")
        _number("top_p", self.top_p, 0, 1, "a number above 0, up to 1")
        if self.top_p == 0:
            raise InvalidRequest("top_p", self.top_p, "a number above 0, up to 1")
        _number("min_p", self.min_p, 0, 1, "a number from 0 to 1")
        for name in ("presence_penalty", "frequency_penalty"):
            _number(name, getattr(self, name), -2, 2, "a number from -2 to 2")
        _number(
            "repetition_penalty", self.repetition_penalty, 1e-3, 100, "a number from 0.001 to 100"
        )
        for token, bias in self.logit_bias.items():
            _integer("logit_bias", token, 0, 2**31 - 1, "token ids as keys")
            _number("logit_bias", bias, -100, 100, "biases from -100 to 100")
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1, "a whole number of at least 1")
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1, "a whole number of at least 0")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                "min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})"
            )
        if len(self.stop) > 16 or not all(isinstance(s, str) and s for s in self.stop):
            raise InvalidRequest("stop", list(self.stop), "up to 16 non-empty strings")
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, 0, 2**31 - 1, "token ids")
        _integer("n", self.n, 1, 128, "a whole number from 1 to 128")
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**64 - 1, "a 64-bit integer or null")
        if self.logprobs is not None:
            expected = f"a whole number from 0 to {MAX_LOGPROBS}, or null"
            _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS, expected)
        if self.grammar is not None:
            expected = "no value beside a grammar, which decides when the output ends"
            for name in ("ignore_eos", "min_tokens"):
                if getattr(self, name):
                    raise InvalidRequest(name, getattr(self, name), expected)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether a row's logits depend on the tokens before it other than through the model."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
        )

    @property
    def plain_argmax(self) -> bool:
        """Whether the target's token is the argmax of the raw logits, a grammar's mask aside."""
        return self.greedy and not (self.penalised or self.logit_bias or self.min_tokens)


@dataclass(frozen=True, slots=True)
class DraftPolicy:
    """What chooses the draft lengths: one of DRAFT_POLICIES; `length` only with "fixed:k"."""

    kind: str
    length: int | None = None

    @classmethod
    def parse(cls, value: object, field: str = "draft_policy") -> DraftPolicy:
        """Reads `throughput`, `fixed`, `fixed:k`, `ema` or `off`. Raises InvalidRequest."""
        kind, colon, length = value.partition(":") if isinstance(value, str) else ("", "", "")
        if kind in DRAFT_POLICIES and not colon:
            return cls(kind)
        if kind == "fixed" and length in map(str, range(1, MAX_DRAFT_LEN + 1)):
            return cls(kind, int(length))
        expected = f"throughput, fixed, fixed:k with k from 1 to {MAX_DRAFT_LEN}, ema or off"
        raise InvalidRequest(field, value, expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeParams:
    """A request's wishes about speculation. `drafter` None takes the server's default.

    `off` decodes without drafts (AR). `max_draft_len` bounds the draft length; 0 is AR as well.
    `policy` is what chooses the lengths, written as in DraftPolicy; None takes the server's.
    `lossy` is the budget by which each token's law may differ from the target's, in total
    variation; 0 is lossless.
    """

    drafter: str | None = None
    max_draft_len: int | None = None
    off: bool = False
    lossy: float = 0.0
    policy: str | None = None

    def __post_init__(self) -> None:
        _number("speculative.lossy", self.lossy, 0, 1, "a total variation from 0 to 1")
        if self.max_draft_len is not None:
            expected = f"a whole number from 0 to {MAX_DRAFT_LEN}"
            _integer("speculative.max_draft_len", self.max_draft_len, 0, MAX_DRAFT_LEN, expected)
        if self.policy is not None:
            policy = DraftPolicy.parse(self.policy, "speculative.policy")
            if policy.length is not None and self.max_draft_len is not None:
                expected = f"no value beside policy {self.policy}"
                raise InvalidRequest("speculative.max_draft_len", self.max_draft_len, expected)

    @classmethod
    def parse(cls, value: object) -> SpeculativeParams:
        """Reads the API field: null, "off", or an object with these fields, `off` aside."""
        if value is None:
            return cls()
        if value == "off":
            return cls(off=True)
        if not isinstance(value, Mapping):
            expected = '"off" or an object with "drafter", "max_draft_len", "policy" and "lossy"'
            raise InvalidRequest("speculative", value, expected)
        known = ("drafter", "max_draft_len", "policy", "lossy")
        unknown = sorted(set(map(str, value)) - set(known))
        if unknown:
            expected = ", ".join(known[:-1]) + f" or {known[-1]}"
            raise InvalidRequest(f"speculative.{unknown[0]}", value[unknown[0]], expected)
        name = value.get("drafter")
        if name is not None and not isinstance(name, str):
            raise InvalidRequest("speculative.drafter", name, "the name of a registered drafter")
        if name == "off":
            return cls(off=True)
        lossy = value.get("lossy")
        return cls(
            drafter=name,
            max_draft_len=value.get("max_draft_len"),
            policy=value.get("policy"),
            lossy=0.0 if lossy is None else lossy,
        )


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
    seconds: float = 0.0  # of the steps that committed its tokens, drafting included
    ar_seconds: float = 0.0  # of as many steps without drafts, by the cost table

    def record(self, drafted: int, accepted: int) -> None:
        self.rounds += 1
        if drafted:
            self.draft_rounds += 1
            self.draft_tokens += drafted
            self.accepted_tokens += accepted
            self.per_step_drafted.append(drafted)
            self.per_step_accepted.append(accepted)

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
    salt: bytes = b""  # scope of its cached prefixes and responses: API key and cache_salt
    eos_ids: frozenset[int] = frozenset()
    max_tokens: int = 0  # resolved bound on output tokens
    leader: Request | None = (
        None  # the first choice of the same prompt, whose KV this one will share
    )
    arrival: float = field(default_factory=time.monotonic)

    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    forced_tail: int = 0  # trailing tokens that the grammar forced in the last round
    cached_tokens: int = 0  # prompt tokens found in the prefix cache at first admission
    blocks: list[int] = field(default_factory=list)
    drafter: str | None = None  # the registered drafter it is pinned to; None is AR
    max_draft_len: int = 0
    policy: str = "throughput"  # what chooses its draft lengths, one of DRAFT_POLICIES
    cohort: str = ""  # requests that behave alike, so that acceptance is counted for them together
    explain: bool = False  # its deltas say what each round did
    held_back: bool | None = None  # kept from drafting, to compare with; None: it had a wish
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    preemptions: int = 0
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None
    stats: SpeculationStats = field(default_factory=SpeculationStats)

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = list(self.prompt_ids)

    @property
    def prompt_len(self) -> int:
        return len(self.prompt_ids)

    @property
    def output_len(self) -> int:
        return len(self.tokens) - len(self.prompt_ids)

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[len(self.prompt_ids) :]

    @property
    def pending(self) -> int:
        """Known tokens that have no KV yet."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        """Whether only the last chosen token, and what the grammar forced after it, is pending."""
        return self.pending <= 1 + self.forced_tail

    @property
    def position(self) -> int:
        """Index of the next generated token: the noise position (prompt tokens do not count)."""
        return self.output_len


def draw_seed() -> int:
    """A fresh 64-bit seed for a request that brought none."""
    return secrets.randbits(64)


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
    position        index of the first output token that the round committed
    proposed        tokens that the drafter gave
    verified        of these, and of what the grammar forced among them, that got a row
    accepted        drafted tokens that stand, forced ones not counted
    forced          tokens committed because the grammar left no choice
    cut_by          why fewer were verified than there was room for; None where all were
    confidence      the drafter's own, for each proposed token that fits the grammar; None: unknown
    rule            verification rule
    step_requests   requests in the same step, and step_rows, all their rows
    draft_ms        spent on drafting for all of them; step_ms on everything else
    """

    request: str
    time: float
    cohort: str
    drafter: str | None
    version: str | None
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
    left no choice about; what was committed is in the delta that carries this."""

    record: RoundRecord
    drafted: tuple[int, ...]
    verified: tuple[int, ...]
    forced: tuple[int, ...]


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


@dataclass(slots=True)
class SparseRow:
    """A draft distribution over a few candidate tokens; every other token has probability 0."""

    ids: Any  # int64 [k]
    probs: Any  # float [k], sums to 1


@dataclass(slots=True)
class DraftBatch:
    """Draft tokens for a batch of requests, ragged: `tokens[i]` are those of the i-th request.

    `q[i]` says what the i-th draft was drawn from: None (deterministic: a one-hot) or one row per
    draft token, each a float array [vocabulary] or a SparseRow. `confidence[i][j]` in [0, 1] is the
    drafter's own estimate that token j is accepted given that those before it are.
    """

    tokens: list[list[int]]
    q: list[list[Any] | None] | None = None
    confidence: list[list[float]] | None = None

    @property
    def lengths(self) -> list[int]:
        return [len(t) for t in self.tokens]

    def q_rows(self, index: int) -> list[Any] | None:
        return None if self.q is None else self.q[index]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision over one request's draft: the first `accepted` tokens stand, then `next_token`."""

    accepted: int
    next_token: int
    distance: float = 0.0  # under a lossy budget: total variation that it used
    replaced: int = 0  # and draft tokens that stand for another one of the target's


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Shape of one model's KV rows: what a slot costs. `dtype_bytes` is bytes per element."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype_bytes: int

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype_bytes
