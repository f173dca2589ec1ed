"""The options of an engine, and snapshots of its statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.core import DraftPolicy, InvalidRequest, SpeculationStats

LOSSLESS_RULES = ("match", "token", "block")
RULES = (*LOSSLESS_RULES, "synthetic")
DTYPES = ("bfloat16", "float32")
BACKENDS = ("auto", "native", "torch")
QUANTIZE = ("int8",)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of one engine. Raises InvalidRequest naming the field.

    model            catalogue name, Hugging Face folder, GGUF file or hub id
    drafter          drafter specs, `[NAME=]KIND[:VALUE][,key=value…]`, the first is the default;
                     "auto" is suffix + ngram, and the DFlash drafter that is shipped for the
                     model, if one is; None serves without drafters
    dtype, device    "bfloat16" or "float32"; "cpu" or "cuda"
    quantize         "int8": linear layers of target and drafters in int8 on CPU, in fp8 on CUDA;
                     None leaves them in `dtype`, in which everything else stays in any case
    backend          "native" (fused CPU kernels), "torch", or "auto": native where it can run
    max_model_len    longest prompt + output in tokens; None: what the model and the KV plan allow
    kv_memory        bytes for the target's and the drafters' KV; None plans from what is free
    max_num_seqs     most requests that run at once
    max_waiting      most requests that may queue at a server; past it QueueFull
    token_budget     most rows in one step
    max_stretch      how much longer a prompt chunk may make a step while others decode
    draft_policy     of requests that name none. "throughput": the draft lengths that pay by
                     measured cost, zero included, up to what is asked for; "fixed": always as long
                     as asked for, "fixed:k" k tokens; "off"
    holdback         share of the requests without a wish about speculation that run without it, so
                     that its gain can be read off live traffic; 0 to 0.5
    draft_window     most tokens of context that a DFlash drafter looks at, so that its cost stays
                     flat over long contexts; None: all
    rule             verification rule: match, token, block, or synthetic (measuring only)
    synthetic        acceptance rate per draft position, for the rule `synthetic`
    prefix_cache     reuse KV of equal prefixes within one scope
    seed             base seed for requests that bring none; None draws one per request
    threads          CPU threads of the forward; None takes every core this process may use
    """

    model: str = "smollm2-135m"
    drafter: str | tuple[str, ...] | None = "auto"
    dtype: str = "bfloat16"
    device: str = "cpu"
    backend: str = "auto"
    quantize: str | None = None
    max_model_len: int | None = None
    kv_memory: int | None = None
    max_num_seqs: int = 64
    max_waiting: int = 256
    token_budget: int = 512
    max_stretch: float = 1.5
    draft_policy: str = "throughput"
    holdback: float = 0.0
    draft_window: int | None = None
    rule: str = "match"
    synthetic: tuple[float, ...] = ()
    prefix_cache: bool = True
    seed: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        choices = {
            "rule": RULES,
            "dtype": DTYPES,
            "backend": BACKENDS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InvalidRequest(name, getattr(self, name), "one of " + ", ".join(allowed))
        DraftPolicy.parse(self.draft_policy)
        if not 0 <= self.holdback <= 0.5:
            raise InvalidRequest("holdback", self.holdback, "a share from 0 to 0.5")
        if self.quantize not in (None, *QUANTIZE):
            expected = "one of " + ", ".join(QUANTIZE) + ", or nothing"
            raise InvalidRequest("quantize", self.quantize, expected)
        if self.device not in ("cpu", "cuda"):
            raise InvalidRequest("device", self.device, "cpu or cuda")
        for name in ("max_num_seqs", "max_waiting", "token_budget"):
            if getattr(self, name) < 1:
                raise InvalidRequest(name, getattr(self, name), "a whole number of at least 1")
        for name in ("max_model_len", "kv_memory", "threads", "draft_window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(name, value, "a whole number of at least 1")
        if self.token_budget < self.max_num_seqs:
            expected = f"at least max_num_seqs ({self.max_num_seqs}): each request its row"
            raise InvalidRequest("token_budget", self.token_budget, expected)
        if self.max_stretch <= 1:
            raise InvalidRequest("max_stretch", self.max_stretch, "a number above 1")
        if (self.rule == "synthetic") != bool(self.synthetic):
            expected = "acceptance rates per position, with rule synthetic and only with it"
            raise InvalidRequest("synthetic", self.synthetic, expected)
        if not all(0 <= rate <= 1 for rate in self.synthetic):
            raise InvalidRequest("synthetic", self.synthetic, "rates from 0 to 1")

    @property
    def drafter_specs(self) -> tuple[str, ...]:
        if self.drafter is None:
            return ()
        return (self.drafter,) if isinstance(self.drafter, str) else tuple(self.drafter)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of the engine's counters since its start and of its gauges."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    kv_blocks_total: int = 0
    kv_blocks_free: int = 0
    prompt_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    steps: int = 0
    failed_steps: int = 0
    drafter_failures: int = 0
    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    decode_seconds: float = 0.0  # steps in which somebody decoded, drafting included
    ar_seconds: float = 0.0  # what the same tokens would have taken without speculation
    speedup_vs_ar: float = 1.0  # the ratio of the two, over about the last minute of decoding
    requests_finished: Mapping[str, int] = field(default_factory=dict)

    @property
    def generation_tokens(self) -> int:
        """Committed tokens."""
        return self.speculation.tokens
