"""What a request may wish for: how tokens are chosen, and how they are drafted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.core.errors import (
    InvalidRequest,
    check_integer,
    check_integers,
    check_number,
    check_numbers,
)

MAX_DRAFT_LEN = 64
MAX_LOGPROBS = 20
GRAMMAR_KINDS = ("json_schema", "regex", "lark")
DRAFT_POLICIES = ("throughput", "fixed", "off")


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
        check_number("temperature", self.temperature, 0, 100, "a number from 0 to 100")
        if 0 < self.temperature < 1e-4:
            raise InvalidRequest("temperature", self.temperature, "0 (argmax) or at least 0.0001")
        check_integer("top_k", self.top_k, -1, 2**31 - 1, "a whole number; 0 or -1 switches it off")
        check_number("top_p", self.top_p, 0, 1, "a number above 0, up to 1")
        if self.top_p == 0:
            raise InvalidRequest("top_p", self.top_p, "a number above 0, up to 1")
        check_number("min_p", self.min_p, 0, 1, "a number from 0 to 1")
        for name in ("presence_penalty", "frequency_penalty"):
            check_number(name, getattr(self, name), -2, 2, "a number from -2 to 2")
        check_number(
            "repetition_penalty", self.repetition_penalty, 1e-3, 100, "a number from 0.001 to 100"
        )
        check_integers("logit_bias", self.logit_bias, 0, 2**31 - 1, "token ids as keys")
        biases = self.logit_bias.values()
        check_numbers("logit_bias", biases, -100, 100, "biases from -100 to 100")
        if self.max_tokens is not None:
            check_integer(
                "max_tokens", self.max_tokens, 1, 2**31 - 1, "a whole number of at least 1"
            )
        check_integer("min_tokens", self.min_tokens, 0, 2**31 - 1, "a whole number of at least 0")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                "min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})"
            )
        if len(self.stop) > 16 or not all(isinstance(s, str) and s for s in self.stop):
            raise InvalidRequest("stop", list(self.stop), "up to 16 non-empty strings")
        check_integers("stop_token_ids", self.stop_token_ids, 0, 2**31 - 1, "token ids")
        check_integer("n", self.n, 1, 128, "a whole number from 1 to 128")
        if self.seed is not None:
            check_integer("seed", self.seed, -(2**63), 2**64 - 1, "a 64-bit integer or null")
        if self.logprobs is not None:
            expected = f"a whole number from 0 to {MAX_LOGPROBS}, or null"
            check_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS, expected)
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
        return self.greedy and not self.edited

    @property
    def filtered(self) -> bool:
        """Whether some tokens are left out for being unlikely beside the others."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def plain_draw(self) -> bool:
        """Whether it is that of the raw logits with the noise on them."""
        return not (self.greedy or self.filtered or self.edited)

    @property
    def edited(self) -> bool:
        """Return whether bias, bans or penalties change a row's logits."""
        return bool(self.penalised or self.logit_bias or self.min_tokens)


@dataclass(frozen=True, slots=True)
class DraftPolicy:
    """What chooses the draft lengths: one of DRAFT_POLICIES; `length` only with "fixed:k"."""

    kind: str
    length: int | None = None

    @classmethod
    def parse(cls, value: object, field: str = "draft_policy") -> DraftPolicy:
        """Reads `throughput`, `fixed`, `fixed:k` or `off`. Raises InvalidRequest."""
        kind, colon, length = value.partition(":") if isinstance(value, str) else ("", "", "")
        if kind in DRAFT_POLICIES and not colon:
            return cls(kind)
        if kind == "fixed" and length in map(str, range(1, MAX_DRAFT_LEN + 1)):
            return cls(kind, int(length))
        expected = f"throughput, fixed, fixed:k with k from 1 to {MAX_DRAFT_LEN}, or off"
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
        check_number("speculative.lossy", self.lossy, 0, 1, "a total variation from 0 to 1")
        if self.max_draft_len is not None:
            expected = f"a whole number from 0 to {MAX_DRAFT_LEN}"
            check_integer(
                "speculative.max_draft_len", self.max_draft_len, 0, MAX_DRAFT_LEN, expected
            )
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
