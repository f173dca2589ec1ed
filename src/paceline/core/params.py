"""Parameters of requests, for sampling and for drafting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import ConfigDict, InstanceOf, PlainValidator

from paceline.core.documents import Document, checked
from paceline.core.errors import InvalidRequest, check_numbers
from paceline.core.field_types import ENDLESS, Between, Whole

MAX_DRAFT_LEN = 64
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_TOKEN_ID = 2**31 - 1
GRAMMAR_KINDS = ("json_schema", "regex", "lark")
DRAFT_POLICIES = ("throughput", "fixed", "off")


@dataclass(frozen=True, slots=True)
class Grammar:
    """The form of an output: `source`, written in the language `kind`.

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


# -- types of fields: requests over HTTP use the same --------------------------------------------

Temperature = Annotated[float, Between(0, 100)]
TopK = Annotated[Whole, Between(-1, ENDLESS, words="a whole number; 0 or -1 switches it off")]
TopP = Annotated[float, Between(0, 1, open=True)]
MinP = Annotated[float, Between(0, 1)]
Penalty = Annotated[float, Between(-2, 2)]
RepetitionPenalty = Annotated[float, Between(1e-3, 100)]
MaxTokens = Annotated[Whole, Between(1, ENDLESS)]
OutputBound = Annotated[Whole, Between(0, ENDLESS)]
MinTokens = Annotated[Whole, Between(0, ENDLESS)]
Choices = Annotated[Whole, Between(1, 128)]
Seed = Annotated[Whole, Between(-(2**63), 2**64 - 1, words="a 64-bit integer or null")]
TopLogprobs = Annotated[
    Whole, Between(0, MAX_LOGPROBS, words=f"a whole number from 0 to {MAX_LOGPROBS}, or null")
]
DraftLength = Annotated[Whole, Between(0, MAX_DRAFT_LEN)]
LossyBudget = Annotated[float, Between(0, 1, words="a total variation from 0 to 1")]


def _check_stops(stop: object) -> tuple[str, ...]:
    if (
        not isinstance(stop, tuple | list)
        or len(stop) > MAX_STOPS
        or not all(isinstance(text, str) and text for text in stop)
    ):
        shown = list(stop) if isinstance(stop, tuple) else stop
        raise InvalidRequest("stop", shown, f"up to {MAX_STOPS} non-empty strings")
    return tuple(stop)


# long tables are checked at C speed; pydantic would take them item by item
def _check_biases(biases: object) -> Mapping[int, float]:
    if not isinstance(biases, Mapping):
        raise InvalidRequest("logit_bias", biases, "token ids and their biases")
    check_numbers("logit_bias", biases, 0, MAX_TOKEN_ID, "token ids as keys", int)
    check_numbers("logit_bias", biases.values(), -100, 100, "biases from -100 to 100", int, float)
    return biases


def _check_token_ids(ids: object) -> tuple[int, ...]:
    if not isinstance(ids, tuple | list):
        raise InvalidRequest("stop_token_ids", ids, "token ids")
    check_numbers("stop_token_ids", ids, 0, MAX_TOKEN_ID, "token ids", int)
    return tuple(ids)


# -- what requests ask for ------------------------------------------------------------------------


@checked
class SamplingParams:
    """Sampling parameters of a request, validated on construction.

    The target's token is argmax(logits / temperature + Gumbel(seed, choice, position, token id)).
    `logprobs` k >= 0 asks for the log-probabilities of the chosen token and the k most likely ones,
    from the raw model logits; a token that the grammar forced had no choice, and reports 0.
    `prompt_logprobs` asks the same of each prompt token but the first, for one choice. `seed`
    None draws a 64-bit seed, which results report. `grammar` decides when the output ends, so it
    goes with neither `ignore_eos` nor `min_tokens`. Raises InvalidRequest, naming the field.
    """

    temperature: Temperature = 1.0
    """temperature of the sampling; 0 is argmax"""
    top_k: TopK = 0
    """sample from this many of the likeliest tokens; 0 or -1: from all"""
    top_p: TopP = 1.0
    """sample from the likeliest tokens whose probabilities add up to this"""
    min_p: MinP = 0.0
    """leave out tokens that are less likely than this share of the likeliest one"""
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    """penalty on tokens that have occurred before; 1 is none"""
    logit_bias: Annotated[Mapping[int, float], PlainValidator(_check_biases)] = field(
        default_factory=dict
    )
    max_tokens: OutputBound | None = None
    """most tokens of the answer"""
    min_tokens: MinTokens = 0
    stop: Annotated[tuple[str, ...], PlainValidator(_check_stops)] = ()
    stop_token_ids: Annotated[tuple[int, ...], PlainValidator(_check_token_ids)] = ()
    ignore_eos: bool = False
    n: Choices = 1
    seed: Seed | None = None
    """seed of the noise; equal seeds give equal text"""
    logprobs: TopLogprobs | None = None
    prompt_logprobs: TopLogprobs | None = None
    skip_special_tokens: bool = True
    grammar: InstanceOf[Grammar] | None = None

    def __post_init__(self) -> None:
        if 0 < self.temperature < 1e-4:
            raise InvalidRequest("temperature", self.temperature, "0 (argmax) or at least 0.0001")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                "min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})"
            )
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            expected = "a whole number of at least 1; 0 is for requests with prompt_logprobs"
            raise InvalidRequest("max_tokens", 0, expected)
        if self.prompt_logprobs is not None and self.n > 1:
            raise InvalidRequest("n", self.n, "1 beside log-probabilities of the prompt")
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
        """Return whether penalties change a row's logits by the tokens before it."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
        )

    @property
    def plain_argmax(self) -> bool:
        """Return whether the token is the argmax of the raw logits, a grammar's mask aside."""
        return self.greedy and not self.edited

    @property
    def filtered(self) -> bool:
        """Return whether top_k, top_p or min_p leave out unlikely tokens."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def plain_draw(self) -> bool:
        """Return whether the token is the argmax of the raw logits plus noise."""
        return not (self.greedy or self.filtered or self.edited)

    @property
    def edited(self) -> bool:
        """Return whether bias, bans or penalties change a row's logits."""
        return bool(self.penalised or self.logit_bias or self.min_tokens)


@dataclass(frozen=True, slots=True)
class DraftPolicy:
    """A policy for draft lengths: one of DRAFT_POLICIES; only "fixed:k" has a `length`."""

    kind: str
    length: int | None = None

    @classmethod
    def parse(cls, value: object, field: str = "draft_policy") -> DraftPolicy:
        """Read `throughput`, `fixed`, `fixed:k` or `off`. Raises InvalidRequest."""
        kind, colon, length = value.partition(":") if isinstance(value, str) else ("", "", "")
        if kind in DRAFT_POLICIES and not colon:
            return cls(kind)
        if kind == "fixed" and length in map(str, range(1, MAX_DRAFT_LEN + 1)):
            return cls(kind, int(length))
        expected = f"throughput, fixed, fixed:k with k from 1 to {MAX_DRAFT_LEN}, or off"
        raise InvalidRequest(field, value, expected)


@checked
class SpeculativeParams:
    """Drafting parameters of a request. `drafter` None takes the server's default.

    `off` decodes without drafts (AR); a `max_draft_len` of 0 is AR as well. `policy` is written as
    DraftPolicy reads it; None takes the server's. `lossy` is the budget, in total variation, by
    which each token's law may differ from the target's. Raises InvalidRequest, naming the field.
    """

    WHERE: ClassVar = "speculative"

    drafter: str | None = None
    max_draft_len: DraftLength | None = None
    """longest draft of a round, 0 to 64 (default: the drafter's own)"""
    off: bool = False
    lossy: LossyBudget = 0.0
    policy: str | None = None

    def __post_init__(self) -> None:
        if self.policy is None:
            return
        policy = DraftPolicy.parse(self.policy, "policy")
        if policy.length is not None and self.max_draft_len is not None:
            expected = f"no value beside policy {self.policy}"
            raise InvalidRequest("max_draft_len", self.max_draft_len, expected)

    @classmethod
    def parse(cls, value: object) -> SpeculativeParams:
        """Read the field `speculative` of a request: null, "off" or a Speculative as an object.

        Raises InvalidRequest, naming the field.
        """
        if value is None:
            return cls()
        if value == "off":
            return cls(off=True)
        if not isinstance(value, Mapping):
            expected = '"off" or an object with "drafter", "max_draft_len", "policy" and "lossy"'
            raise InvalidRequest("speculative", value, expected)
        return Speculative.read(dict(value), "speculative").params()


class Speculative(Document):
    """The object that a request may give as `speculative`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    drafter: str | None = None
    """Name of a registered drafter."""
    max_draft_len: DraftLength | None = None
    """Longest draft of a round (default: the drafter's own)."""
    policy: str | None = None
    """Policy for draft lengths: throughput, fixed, fixed:k or off."""
    lossy: LossyBudget | None = None
    """Total variation by which a token's law may differ from the target's; 0 is lossless."""

    def params(self) -> SpeculativeParams:
        """Return the same as parameters. Raises InvalidRequest, naming the field."""
        if self.drafter == "off":
            return SpeculativeParams(off=True)
        return SpeculativeParams(**self.model_dump(exclude_none=True))
