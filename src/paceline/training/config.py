"""The settings of a training run: the type, bounds, default and help text of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.errors import together
from paceline.core.field_types import Between, Expected, as_tuple, fields_of

# These learn from the target's distribution.
SOFT = ("kl", "tv", "nla", "lk_hybrid", "expected_al", "expected_speedup")
OBJECTIVES = ("ce", *SOFT, "expected_matches", "on_policy")
# Of whole blocks; the others look at one slot at a time.
OF_BLOCKS = {"expected_al", "expected_speedup", "expected_matches", "on_policy"}
MAX_LAYERS, MAX_BLOCK = 8, 64
GIB = 1 << 30
# Of a run that names none; a setting that is None has no effect without others.
DEFAULTS: dict[str, float] = {
    "layers": 3,
    "block": 8,
    "taps": 5,
    "selector_rank": 256,
    "short_share": 0.1,
    "matrix_lr": 0.02,
    "soft_tokens": 32,
    "selector_share": 1.0,
    "features_gb": 4.0,
    "features_folder_gb": 64.0,
    "features_wait_minutes": 15.0,
}
NOT_WAITING = "no features_wait beside it: a run that waits"
COMPARED = "init beside it: a drafter, from whose acceptance length a fall is counted"
BlockSize = Annotated[int, Between(2, MAX_BLOCK)]
Count = Annotated[int, Between(1)]
Amount = Annotated[int, Between(1, 1 << 16)]
Share = Annotated[float, Between(0, 1)]
# Slots behind a short block learn nothing meanwhile, so that part of a run is a small one.
EarlyShare = Annotated[float, Between(0, 0.2)]
DecayShare = Annotated[float, Between(0, 0.9)]
LayerCount = Annotated[int, Between(1, MAX_LAYERS)]
TextLength = Annotated[int, Between(8, 1 << 20)]
Context = Annotated[int, Between(1, 1 << 20)]
AboveZero = Annotated[float, Between(1e-6, 1e6)]
Sets = Annotated[
    tuple[str, ...],
    Expected("at least one folder that `paceline synth` wrote", bool),
    BeforeValidator(as_tuple),
]
RoundCosts = Annotated[tuple[Annotated[float, Between(1e-3, 1e3)], ...], BeforeValidator(as_tuple)]
Tracker = Literal["tensorboard", "wandb", "trackio", "mlflow"]
TargetEngine = Literal["paceline", "transformers", "vllm", "sglang"]
# Options of vLLM's LLM that the settings of a run decide.
SET_HERE = {
    "model", "dtype", "max_model_len", "tensor_parallel_size", "enable_prefix_caching",
    "disable_log_stats", "speculative_config", "kv_transfer_config",
}  # fmt: skip


def default_of(model: type, name: str) -> object:
    """Return the default of a setting."""
    return fields_of(model)[name].get_default(call_default_factory=True)


def _optional(name: str, description: str) -> Any:
    """A field that is None unless the run names it; DEFAULTS says what holds then."""
    return about(description, None, f"{DEFAULTS[name]:g}")


@checked
class TrainConfig:
    """Everything that decides what a run computes, and where it writes. The descriptions of the
    fields are the help texts of `paceline train`."""

    model: str = about("the target: a name that `paceline list` shows, folder or hub id")
    sets: Sets = about("folders that `paceline synth` wrote")
    out: str = about("folder of the run; the best drafter is kept in its `drafter`")
    held_out: dict[str, str] = about(
        "NAME=FOLDER of a further set to evaluate on, repeatable", dict
    )
    out_of_domain: dict[str, str] = about(
        "NAME=FOLDER of a set that must not get worse, repeatable", dict
    )
    init: str | None = about(
        "a drafter to go on from: folder, hub id, or the name of a model that one is shipped for",
        None,
        "random weights",
    )
    generation: Literal["dflash", "dflash2"] | None = about(
        "design of a new drafter", None, "dflash, or what --init is"
    )
    layers: LayerCount | None = _optional("layers", "draft layers of a new drafter")
    block: BlockSize | None = about(
        "tokens of a block, the anchor included", None, f"{DEFAULTS['block']:g}, or --init's"
    )
    taps: Annotated[int, Between(1, 64)] | None = _optional(
        "taps", "target layers whose outputs the drafter sees"
    )
    window: Context | None = about("tokens of context that a draft sees", None, "all, or --init's")
    mask_token: Annotated[int, Between(0, 1 << 31)] | None = about(
        "id of the token in the mask slots", None, "one that text never holds"
    )
    selector_rank: Annotated[int, Between(1, 4096)] | None = _optional(
        "selector_rank", "numbers per token in each codebook of DFlash 2's selector"
    )
    steps: Count | None = about("optimizer steps", None)
    epochs: AboveZero | None = about("passes over the texts, in place of --steps", None)
    hours: AboveZero | None = about(
        "hours that the run takes, over all its starts, in place of --steps", None
    )
    short_block: BlockSize | None = about(
        "tokens of a block in the first part of the run", None, "as --block"
    )
    short_share: EarlyShare | None = _optional(
        "short_share", "share of the run, from its start, with blocks of --short-block"
    )
    texts: Amount = about("texts of a step", 8)
    micro: Amount = about("texts that are computed at a time", 8)
    micro_tokens: Count | None = about(
        "tokens of their context, with its padding; a longer text is computed alone",
        None,
        "no limit",
    )
    anchors: Amount = about("blocks of a text, at most", 32)
    max_tokens: TextLength = about("tokens after which a text is cut", 2048)
    head_tokens: Annotated[int, Between(0, 1 << 31)] = about(
        "frequent tokens that the head is cut to; 0 keeps the whole head", 16384
    )
    optimizer: Literal["adamw", "muon"] = about("adamw, or muon for the matrices", "muon")
    lr: Share = about("peak learning rate of AdamW", 1e-3)
    matrix_lr: Share | None = _optional("matrix_lr", "peak learning rate of Muon")
    weight_decay: Share = about("weight decay", 0.0)
    warmup: Share = about("share of the run in which the learning rate rises", 0.04)
    decay: DecayShare = about("share of the run, at its end, in which the learning rate falls", 0.2)
    final_lr: Share = about("share of the peak that the learning rate falls to", 0.05)
    clip: AboveZero = about("largest norm of a gradient", 1.0)
    weights: Literal["dpace", "exponential", "uniform"] = about(
        "weights of the positions in a block", "dpace"
    )
    mix: dict[str, Annotated[float, Between(1e-9, 1e6)]] = about(
        f"objectives and shares, like ce=0.1,tv=0.9: {', '.join(OBJECTIVES)}", lambda: {"ce": 1.0}
    )
    round_costs: RoundCosts | None = about(
        "for expected_speedup: the time of a round that drafts 1, 2, … tokens, in steps without "
        "drafts, as `paceline drafter costs` prints it",
        None,
    )
    labels: Literal["text", "target"] = about(
        "what is learnt: the text, or the target's most likely tokens along it", "text"
    )
    soft_tokens: Annotated[int, Between(1, 4096)] | None = _optional(
        "soft_tokens",
        f"tokens of the target's distribution that {', '.join(SOFT)} and on_policy see",
    )
    selector_share: Annotated[float, Between(0, 100)] | None = _optional(
        "selector_share", "share of the loss of DFlash 2's selector"
    )
    features_gb: Annotated[float, Between(0, 1e6)] | None = _optional(
        "features_gb", "memory that keeps the target's features, GiB"
    )
    features_folder: str | None = about(
        "folder that keeps the target's features on disk, for this run and others", None
    )
    features_folder_gb: Annotated[float, Between(0, 1e6)] | None = _optional(
        "features_folder_gb", "disk space of that folder's files, GiB"
    )
    features_only: bool = about(
        "compute the features of all texts into features_folder, and train nothing", False
    )
    features_wait: bool = about(
        "wait for features that another process writes into features_folder, and compute none",
        False,
    )
    features_wait_minutes: AboveZero | None = _optional(
        "features_wait_minutes", "minutes without anything new there that end the wait, and the run"
    )
    features_passing: bool = about(
        "pass features through features_folder: the run that waits asks for its next texts, as "
        "many as fit, and removes them when they are read; the writer computes what is asked for",
        False,
    )
    target_engine: TargetEngine | None = about(
        "what computes the target; transformers loads any causal model",
        None,
        "paceline, for families that it serves",
    )
    target_python: str | None = about(
        "the Python of an environment with vLLM", None, "that of PACELINE_VLLM_PYTHON"
    )
    target_devices: Annotated[int, Between(1, 1024)] | None = about(
        "devices that vLLM spreads the target over, by tensor parallelism", None, "1"
    )
    target_options: dict[str, str] = about(
        "NAME=VALUE of a further option of vLLM's LLM, as the target is served with it, like "
        "quantization=fp8; repeatable",
        dict,
    )
    target_url: str | None = about(
        "the address of the SGLang server that computes the target", None
    )
    quantize: Literal["int8"] | None = about(
        "the target's linear layers, as `paceline serve --quantize` serves them", None, "none"
    )
    shard_target: bool = about(
        "spread the target over all processes (FSDP2), where it fits no single one", False
    )
    dtype: Literal["bfloat16", "float32"] = about(
        "numbers to compute in; a CPU that multiplies float32 faster does so",
        "bfloat16",
    )
    device: Literal["cpu", "cuda"] = about("device to compute on", "cpu")
    compile: bool = about("compile the drafter's layers with torch.compile", False)
    attention: Literal["auto", "padded", "flex"] = about(
        "form of the drafter's attention: padded texts, or flex on CUDA, without scores in memory; "
        "auto is padded on CUDA, and one text after the other on a CPU",
        "auto",
    )
    seed: Annotated[int, Between(0, (1 << 63) - 1)] = about("decides weights, order and anchors", 0)
    eval_every: Count = about("steps between evaluations", 200)
    eval_texts: Count = about("texts of each set that are evaluated", 64)
    eval_anchors: Count = about("blocks of each text that is evaluated", 32)
    save_every: Count = about("steps between saves", 200)
    patience: Annotated[int, Between(0, 10**6)] = about(
        "evaluations without a better one, held out or out of domain, that end the run; 0 for none",
        0,
    )
    regression: Share = about("share that AL out of domain may fall by", 0.05)
    on_regression: Literal["flag", "stop"] = about(
        "what a larger fall does: flag it, or stop the run", "flag"
    )
    trackers: Annotated[tuple[Tracker, ...], BeforeValidator(as_tuple)] = about(
        "trackers besides log.jsonl, separated by commas", ()
    )
    threads: Annotated[int, Between(1, 4096)] | None = about("threads of the CPU", None, "all")

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise together(problems)

    def _problems(self) -> Iterator[InvalidRequest]:
        if not self.mix:
            yield InvalidRequest("mix", self.mix, "at least one objective, like ce=1")
        for name in self.mix:
            if name not in OBJECTIVES:
                yield InvalidRequest("mix", name, f"objectives among {', '.join(OBJECTIVES)}")
        if self.on_policy and self.init is None:
            yield InvalidRequest("mix", "on_policy", "init beside it: a drafter to go on from")
        if self.on_policy and self.weights != "dpace":
            expected = "dpace beside on_policy, whose blocks are not those that were drawn"
            yield InvalidRequest("weights", self.weights, expected)
        if "expected_speedup" in self.mix and not self.round_costs:
            expected = "what `paceline drafter costs` prints, for expected_speedup"
            yield InvalidRequest("round_costs", None, expected)
        if [self.steps, self.epochs, self.hours].count(None) != 2:
            yield InvalidRequest("steps", self.steps, "either steps, epochs or hours")
        if self.shard_target and self.target_engine not in (None, "transformers"):
            expected = "transformers beside shard_target, which spreads it"
            yield InvalidRequest("target_engine", self.target_engine, expected)
        if self.attention == "flex" and self.device == "cpu":
            expected = "auto or padded, or device cuda: on a CPU flex has no backward pass"
            yield InvalidRequest("attention", self.attention, expected)
        if self.soft and self.features_alone:
            engine = self.target_engine
            expected = f"paceline or transformers: {engine} does not show the target's distribution"
            yield InvalidRequest("target_engine", engine, expected)
        if self.texts % self.micro:
            yield InvalidRequest("micro", self.micro, f"a divisor of texts ({self.texts})")
        waits = self.features_wait or (self.features_only and self.features_passing)
        for name, effective, needed in (
            ("matrix_lr", self.optimizer == "muon", "optimizer muon beside it"),
            (
                "soft_tokens",
                self.soft or self.on_policy,
                "an objective or labels of the target's, or on_policy beside it",
            ),
            ("round_costs", "expected_speedup" in self.mix, "expected_speedup in mix beside it"),
            ("short_share", self.short_block is not None, "short_block beside it"),
            ("features_gb", not self.shard_target, "no shard_target beside it, which keeps none"),
            ("features_only", self.features_folder is not None, "features_folder beside it"),
            ("features_only", not self.features_wait, "no features_wait beside it"),
            ("features_folder_gb", self.features_folder is not None, "features_folder beside it"),
            (
                "features_folder_gb",
                not self.features_wait or self.features_passing,
                f"{NOT_WAITING} writes nothing",
            ),
            (
                "features_folder_gb",
                not (self.features_only and self.features_passing),
                "no features_only beside features_passing: the run that waits bounds the folder",
            ),
            ("features_passing", waits, "features_wait or features_only beside it"),
            ("features_wait", self.features_folder is not None, "features_folder beside it"),
            (
                "features_wait_minutes",
                waits,
                "features_wait beside it, or both features_only and features_passing",
            ),
            ("shard_target", not self.features_wait, f"{NOT_WAITING} computes no target"),
            ("target_python", not self.features_wait, f"{NOT_WAITING} starts no vLLM"),
            ("target_devices", not self.features_wait, f"{NOT_WAITING} starts no vLLM"),
            ("target_url", not self.features_wait, f"{NOT_WAITING} asks no server"),
            (
                "quantize",
                not (self.with_transformers or self.features_alone),
                "target_engine paceline, and no shard_target",
            ),
            ("target_python", self.with_vllm, "target_engine vllm beside it"),
            ("target_devices", self.with_vllm, "target_engine vllm beside it"),
            ("target_options", self.with_vllm, "target_engine vllm beside it"),
            ("target_url", self.target_engine == "sglang", "target_engine sglang beside it"),
            ("regression", self.init is not None, COMPARED),
            ("on_regression", self.init is not None, COMPARED),
        ):
            value = getattr(self, name)
            if not effective and value != default_of(TrainConfig, name):
                yield InvalidRequest(name, value, needed)
        for name in sorted(self.target_options.keys() & SET_HERE):
            yield InvalidRequest("target_options", name, "an option that train does not set itself")

    @property
    def soft(self) -> bool:
        """True when the drafter learns from the target's distribution and not from text alone."""
        return self.labels == "target" or self.soft_mix

    @property
    def soft_mix(self) -> bool:
        """True when an objective needs the target's distribution."""
        return not self.mix.keys().isdisjoint(SOFT)

    @property
    def on_policy(self) -> bool:
        """True when the drafter learns from blocks that it samples."""
        return "on_policy" in self.mix

    @property
    def with_transformers(self) -> bool:
        """True when transformers computes the target even where our engine serves it."""
        return self.shard_target or self.target_engine == "transformers"

    @property
    def with_vllm(self) -> bool:
        """True when vLLM computes the target, in a process of its own."""
        return self.target_engine == "vllm"

    @property
    def features_alone(self) -> bool:
        """True when another engine computes the target, and does not show its distribution."""
        return self.target_engine in ("vllm", "sglang")

    def total_steps(self, texts: int) -> int | None:
        """Return the optimizer steps of the whole run over a set of so many texts; None for a run
        of some hours."""
        if self.epochs is not None:
            return max(1, math.ceil(self.epochs * texts / self.texts))
        return self.steps

    def value(self, name: str) -> float:
        """Return a setting of DEFAULTS as the run names it, zero included, or its default."""
        value = getattr(self, name)
        return DEFAULTS[name] if value is None else float(value)

    @property
    def folder(self) -> Path:
        return Path(self.out)
