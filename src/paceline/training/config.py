"""What a training run is told, checked field by field before anything is computed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.core.errors import check_integer, check_number

OBJECTIVES = ("ce", "kl", "tv", "nla", "lk_hybrid")
POSITION_WEIGHTS = ("dpace", "exponential", "uniform")
GENERATIONS = ("dflash", "dflash2")
OPTIMIZERS = ("adamw", "muon")
LABELS = ("text", "target")
REGRESSIONS = ("flag", "stop")
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
MAX_LAYERS, MAX_BLOCK = 8, 64
# Where the run names none.
DEFAULTS: dict[str, float] = {
    "short_share": 0.6,
    "matrix_lr": 0.02,
    "soft_tokens": 32,
    "selector_share": 1.0,
    "features_gb": 4.0,
}


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Everything that decides what a run computes, and where it writes.

    `sets` are folders that `paceline synth` wrote; `held_out` maps names to further sets whose
    `held_out` split is only evaluated, and `out_of_domain` those that must not get worse. `init` is
    a drafter to go on from, None trains from random weights. `block`, `layers`, `taps`, `window`,
    `mask_token`, `generation` and `selector_rank` (DFlash 2) shape a new drafter (None: a default;
    with `init`, what it has).

    A step takes `texts` texts with at most `anchors` blocks each, `micro` texts at a time. `epochs`
    or `steps` says how long, and for the share `short_share` (0.6) of it blocks are only
    `short_block` tokens long (None: never): later slots are hopeless then anyway.
    `features_gb` (4) bounds the memory that keeps the target's features; `shard_target` spreads a
    target that fits no single device over all processes, and keeps none.
    `head_tokens` cuts the head to that many frequent tokens, 0 keeps all. `labels` are the text's
    own tokens or the target's most likely ones; `mix` shares out the objectives.
    """

    model: str
    sets: tuple[str, ...]
    out: str
    held_out: Mapping[str, str] = field(default_factory=dict)
    out_of_domain: Mapping[str, str] = field(default_factory=dict)
    init: str | None = None
    generation: str | None = None
    layers: int | None = None
    block: int | None = None
    taps: int | None = None
    window: int | None = None
    mask_token: int | None = None
    selector_rank: int | None = None
    steps: int | None = None
    epochs: float | None = None
    short_block: int | None = None
    short_share: float | None = None
    texts: int = 8
    micro: int = 8
    anchors: int = 32
    max_tokens: int = 2048
    head_tokens: int = 16384
    optimizer: str = "muon"
    lr: float = 1e-3
    matrix_lr: float | None = None
    weight_decay: float = 0.0
    warmup: float = 0.04
    final_lr: float = 0.05
    clip: float = 1.0
    weights: str = "dpace"
    mix: Mapping[str, float] = field(default_factory=lambda: {"ce": 1.0})
    labels: str = "text"
    soft_tokens: int | None = None
    selector_share: float | None = None
    features_gb: float | None = None
    shard_target: bool = False
    dtype: str = "bfloat16"
    device: str = "cpu"
    seed: int = 0
    eval_every: int = 200
    eval_texts: int = 64
    eval_anchors: int = 32
    save_every: int = 200
    patience: int = 0
    regression: float = 0.05
    on_regression: str = "flag"
    trackers: tuple[str, ...] = ()
    threads: int | None = None

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_numbers(self)
        _check_mix(self.mix)
        if (self.steps is None) == (self.epochs is None):
            raise InvalidRequest("steps", self.steps, "either steps or epochs, and not both")
        if not self.sets:
            raise InvalidRequest(
                "sets", self.sets, "at least one folder that `paceline synth` wrote"
            )
        _check_effect(self)
        if self.texts % self.micro:
            raise InvalidRequest("micro", self.micro, f"a divisor of texts ({self.texts})")

    @property
    def soft(self) -> bool:
        """Whether anything is learnt from the target's distribution and not only from the text."""
        return self.labels == "target" or set(self.mix) != {"ce"}

    def total_steps(self, texts: int) -> int:
        """Optimizer steps of the whole run over a set of so many texts."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, math.ceil(self.epochs * texts / self.texts))

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def short_steps(self) -> float:
        """Share of the run with short blocks."""
        return 0.0 if self.short_block is None else self.value("short_share")

    def value(self, name: str) -> float:
        """A setting that is None unless the run names it, because without others it has no effect:
        what the run says, or the default. Zero is something said."""
        given = getattr(self, name)
        return DEFAULTS[name] if given is None else float(given)

    @property
    def folder(self) -> Path:
        return Path(self.out)


def _check_choices(config: TrainConfig) -> None:
    for name, known in (
        ("optimizer", OPTIMIZERS),
        ("weights", POSITION_WEIGHTS),
        ("labels", LABELS),
        ("on_regression", REGRESSIONS),
        ("dtype", ("bfloat16", "float32")),
        ("device", ("cpu", "cuda")),
        ("generation", (None, *GENERATIONS)),
    ):
        value = getattr(config, name)
        if value not in known:
            named = ", ".join(str(choice) for choice in known if choice is not None)
            raise InvalidRequest(name, value, f"one of {named}")
    for tracker in config.trackers:
        if tracker not in TRACKERS:
            raise InvalidRequest("trackers", tracker, f"one of {', '.join(TRACKERS)}")


_WHOLE: dict[str, tuple[int, int]] = {
    "layers": (1, MAX_LAYERS),
    "block": (2, MAX_BLOCK),
    "short_block": (2, MAX_BLOCK),
    "taps": (1, 64),
    "window": (1, 1 << 20),
    "mask_token": (0, 1 << 31),
    "selector_rank": (1, 4096),
    "steps": (1, 10**9),
    "texts": (1, 1 << 16),
    "micro": (1, 1 << 16),
    "anchors": (1, 1 << 16),
    "max_tokens": (8, 1 << 20),
    "head_tokens": (0, 1 << 31),
    "soft_tokens": (1, 4096),
    "seed": (0, (1 << 63) - 1),
    "eval_every": (1, 10**9),
    "eval_texts": (1, 10**6),
    "eval_anchors": (1, 10**6),
    "save_every": (1, 10**9),
    "patience": (0, 10**6),
    "threads": (1, 4096),
}
_REAL: dict[str, tuple[float, float]] = {
    "epochs": (1e-6, 1e6),
    "lr": (0.0, 1.0),
    "matrix_lr": (0.0, 1.0),
    "weight_decay": (0.0, 1.0),
    "short_share": (0.0, 1.0),
    "warmup": (0.0, 1.0),
    "final_lr": (0.0, 1.0),
    "clip": (1e-6, 1e6),
    "selector_share": (0.0, 100.0),
    "features_gb": (0.0, 1e6),
    "regression": (0.0, 1.0),
}


def _check_numbers(config: TrainConfig) -> None:
    for name, (low, high) in _WHOLE.items():
        value = getattr(config, name)
        if value is not None:
            check_integer(name, value, low, high, f"a whole number from {low} to {high}")
    for name, (least, most) in _REAL.items():
        value = getattr(config, name)
        if value is not None:
            check_number(name, value, least, most, f"a number from {least:g} to {most:g}")


def _check_effect(config: TrainConfig) -> None:
    """Raises InvalidRequest for a setting that the others leave without effect."""
    for name, works, needed in (
        ("matrix_lr", config.optimizer == "muon", "optimizer muon beside it"),
        ("soft_tokens", config.soft, "an objective or labels of the target's beside it"),
        ("short_share", config.short_block is not None, "short_block beside it"),
        ("features_gb", not config.shard_target, "no shard_target beside it, which keeps none"),
    ):
        if getattr(config, name) is not None and not works:
            raise InvalidRequest(name, getattr(config, name), needed)


def _check_mix(mix: Mapping[str, float]) -> None:
    if not mix:
        raise InvalidRequest("mix", dict(mix), "at least one objective, like ce=1")
    for name, share in mix.items():
        if name not in OBJECTIVES:
            raise InvalidRequest("mix", name, f"objectives among {', '.join(OBJECTIVES)}")
        check_number(f"mix.{name}", share, 1e-9, 1e6, "a positive number")
