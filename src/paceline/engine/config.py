"""The options of an engine, and snapshots of its statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from paceline.core import DraftPolicy, InvalidRequest, SpeculationStats
from paceline.core.documents import checked
from paceline.core.field_types import Between, Flag, OneOf, Several
from paceline.drafters import DEFAULT_SPEC

LOSSLESS_RULES = ("match", "token", "block")
RULES = (*LOSSLESS_RULES, "synthetic")
NO_DRAFTER = "none"  # in place of a spec, like None: serve without drafts

Positive = Annotated[int, Between(1)]
Bytes = Annotated[int, Between(1), Flag(metavar="SIZE", size=True)]


@checked
class EngineConfig:
    """Options of one engine. Raises InvalidRequest naming the field.

    The command line, its help and docs/cli.md take name, type, default and text from the fields.
    """

    model: str = "smollm2-135m"
    """a name that `paceline list` shows, hub id, Hugging Face folder or GGUF file"""
    drafter: Annotated[
        str | Annotated[tuple[str, ...], Several] | None, Flag("drafter", "SPEC")
    ] = DEFAULT_SPEC
    """drafter, as [NAME=]KIND[:VALUE][,key=value...] or as [NAME=] and a folder, a hub id or the
    name of a model that a drafter is shipped for; repeat it to load several, the first is the
    default; `auto` is suffix + ngram, and the DFlash drafter that is shipped for the model if there
    is one; `none` serves without"""
    dtype: Annotated[str, OneOf(("bfloat16", "float32"))] = "bfloat16"
    """type of the weights and of the computation"""
    device: Annotated[str, OneOf(("cpu", "cuda"))] = "cpu"
    """where the model runs"""
    backend: Annotated[str, OneOf(("auto", "native", "torch"))] = "auto"
    """`native` has fused CPU kernels, `torch` has stock operations, and `auto` is native where it
    can run"""
    quantize: Annotated[str, OneOf(("int8",))] | None = None
    """quantise the linear layers of the target and of drafters: int8 on CPU, fp8 on CUDA;
    everything else stays in --dtype"""
    max_model_len: Positive | None = None
    """longest prompt + output in tokens (default: what the model and the KV cache allow)"""
    kv_memory: Bytes | None = None
    """memory for the KV cache of the target and the drafters, as 512MiB (default: planned from what
    is free)"""
    spare_drafter_memory: (
        Annotated[int, Between(0, words="at least 0 bytes"), Flag(metavar="SIZE", size=True)] | None
    ) = None
    """memory kept for the weights and KV of drafters that are loaded while the server runs, as
    64MiB; 0 keeps none (default: what the largest --drafter takes, and at least an eighth of what
    the model takes)"""
    max_num_seqs: Positive = 64
    """most requests that run at once"""
    max_waiting: Positive = 256
    """most requests that may queue at a server"""
    token_budget: Positive = 512
    """most rows in one step; at least --max-num-seqs"""
    max_stretch: Annotated[float, Between(1, open=True), Flag(metavar="FACTOR")] = 1.5
    """how much longer a chunk of a long prompt may make a step while others decode"""
    ttft_goal: Annotated[float, Between(0, open=True), Flag(metavar="SECONDS")] | None = None
    """time to first token to keep to: prompts that would take longer get more of each step, if
    there is no --tpot-goal"""
    tpot_goal: Annotated[float, Between(0, open=True), Flag(metavar="SECONDS")] | None = None
    """time per output token to keep to: prompts make steps this long while others decode (default:
    short prompts up to 8 times as long as without them, long ones by --max-stretch, or more where
    many prompts wait beside few requests that decode)"""
    draft_policy: Annotated[str, Flag(metavar="POLICY")] = "throughput"
    """draft lengths of requests that name no policy: `throughput` drafts as long as measured costs
    make it pay, `fixed` as long as the request allows, `fixed:k` up to k tokens, `off` never"""
    draft_tree: Annotated[int, Between(0, words="0 or more nodes"), Flag(metavar="NODES")] = 0
    """most tokens of a draft with alternatives, which a DFlash drafter then proposes (default: 0,
    drafts without alternatives)"""
    holdback: Annotated[
        float, Between(0, 0.5, words="a share from 0 to 0.5"), Flag(metavar="SHARE")
    ] = 0.0
    """share of requests that run without speculation, to compare the others with, as 0.01; at most
    0.5"""
    draft_window: Annotated[int, Between(0)] | None = None
    """most tokens of context that a DFlash drafter looks at; 0: all (default: as many as it was
    trained on, where its folder says so, else all)"""
    rule: Annotated[str, OneOf(RULES)] = "match"
    """verification rule; `synthetic` is for measurements only"""
    synthetic: Annotated[tuple[float, ...], Several, Flag(metavar="RATES")] = ()
    """acceptance rate of each draft position for --rule synthetic, as 0.9,0.8,0.7 (not lossless)"""
    prefix_cache: Annotated[bool, Flag("no-prefix-cache")] = True
    """compute every prompt anew, without reusing the KV of equal prefixes"""
    seed: Annotated[int | None, Flag("engine-seed")] = None
    """base seed of requests that bring none (default: drawn for each request)"""
    threads: Positive | None = None
    """CPU threads of a forward (default: all cores)"""

    def __post_init__(self) -> None:
        if NO_DRAFTER in self._stated_drafters and len(self._stated_drafters) > 1:
            expected = f"`{NO_DRAFTER}` alone, or drafters without it"
            raise InvalidRequest("drafter", self.drafter, expected)
        DraftPolicy.parse(self.draft_policy)
        if self.token_budget < self.max_num_seqs:
            expected = f"at least max_num_seqs ({self.max_num_seqs}): each request its row"
            raise InvalidRequest("token_budget", self.token_budget, expected)
        if (self.rule == "synthetic") != bool(self.synthetic):
            expected = "acceptance rates per position, with rule synthetic and only with it"
            raise InvalidRequest("synthetic", self.synthetic, expected)
        if self.draft_tree and self.rule != "match":
            expected = f"0 with rule {self.rule}: only match judges drafts with alternatives"
            raise InvalidRequest("draft_tree", self.draft_tree, expected)
        if not all(0 <= rate <= 1 for rate in self.synthetic):
            raise InvalidRequest("synthetic", self.synthetic, "rates from 0 to 1")

    @property
    def drafter_specs(self) -> tuple[str, ...]:
        """The specs of the drafters to load; the first is the default."""
        return () if NO_DRAFTER in self._stated_drafters else self._stated_drafters

    @property
    def _stated_drafters(self) -> tuple[str, ...]:
        if self.drafter is None:
            return ()
        return (self.drafter,) if isinstance(self.drafter, str) else self.drafter


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Counters since the engine's start, and gauges; what others read is a copy."""

    running: int = 0
    waiting: int = 0
    prompting: int = 0  # of those that run: their prompt is not computed yet
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
    decode_seconds: float = 0.0  # of steps in which a request decoded, drafting included
    ar_seconds: float = 0.0  # what the same tokens would have taken without speculation
    speedup_vs_ar: float = 1.0  # the ratio of the two, over about the last minute of decoding
    requests_finished: dict[str, int] = field(default_factory=dict)

    @property
    def generation_tokens(self) -> int:
        """Committed tokens."""
        return self.speculation.tokens
