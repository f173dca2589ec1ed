"""The cost of a training step: operations and seconds by phase, beside the machine's matmul
peak."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from paceline.dataset.run_log import PHASES
from paceline.models.any_target import TargetShape
from paceline.models.config import ModelConfig
from paceline.models.dflash.config import DFlashConfig


def _zeros() -> dict[str, float]:
    return dict.fromkeys(PHASES, 0.0)


@dataclass(slots=True)
class StepCosts:
    """Sums over the steps since the last entry of the log, and over the whole run.

    Forward and backward of a phase count together; the backward of the head runs in its forward.
    `operations` are floating-point operations; `peak` is the machine's matmul peak, in operations
    per second.
    """

    device: str = "cpu"
    peak: float = 1.0
    steps: int = 0
    seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=_zeros)  # seconds
    operations: dict[str, float] = field(default_factory=_zeros)
    all_slots: float = 0.0
    all_seconds: float = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = self.now()
        yield
        self.phases[name] += self.now() - start

    def now(self) -> float:
        """Return seconds of a clock, after the device has finished its work."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def add(self, seconds: float, **values: float) -> None:
        self.steps += 1
        self.seconds += seconds
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.all_slots += values["slots"]
        self.all_seconds += seconds

    def numbers(self) -> dict[str, float]:
        """Return log entries. `loss` is the plain cross entropy of a slot, in nats: it falls as the
        drafter learns. `objective` is what is minimised; its weights may grow with what is learnt.
        `slots` are tokens that were learnt, counted once for every block
        that they are in; `slots` and `hours` are those of the whole run; `ms` and `peak_share` are
        milliseconds of a step, and the share of the peak, by phase."""
        steps, seconds = max(1, self.steps), max(self.seconds, 1e-9)
        means = {name: total / steps for name, total in self.sums.items()}
        entries = {
            "loss": means["loss"],
            "objective": means["objective"],
            "train/al": means["al"],
            "grad_norm": means["grad_norm"],
            "lr_share": means["lr_share"],
            "slots_per_second": self.sums["slots"] / seconds,
            "blocks_per_second": self.sums["blocks"] / seconds,
            "seconds_per_step": seconds / steps,
            "slots": self.all_slots,
            "hours": self.all_seconds / 3600,
            **{f"ms/{name}": 1e3 * spent / steps for name, spent in self.phases.items()},
        }
        for name, operations in self.operations.items():
            if operations and self.phases[name]:
                entries[f"peak_share/{name}"] = operations / self.phases[name] / self.peak
        if total := sum(self.phases.values()):
            entries["peak_share/all"] = sum(self.operations.values()) / total / self.peak
        return entries


def layer_weights(shape: ModelConfig | TargetShape) -> int:
    """Return the number of weights in one decoder layer's linear maps."""
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    return shape.hidden_size * (2 * q + 2 * kv + 3 * shape.intermediate_size)


def target_operations(shape: TargetShape, tokens: int, logits: int = 0) -> float:
    """Return the operations of a forward with `logits` rows of the head, without attention itself,
    which is a few percent."""
    layers = tokens * shape.num_layers * layer_weights(shape)
    return 2.0 * (layers + logits * shape.vocab_size * shape.hidden_size)


def drafter_operations(
    config: DFlashConfig, tokens: int, slots: int, forwards: int = 1, backwards: int = 1
) -> float:
    """Return the operations of so many forwards and backwards over `slots` block slots that see
    `tokens` context tokens."""
    shape = config.layers
    kv = 2 * shape.num_kv_heads * shape.head_dim * shape.hidden_size * shape.num_layers
    fc = config.feature_size * shape.hidden_size
    # The features need no gradient, so fc's backward is one product and not two.
    products, of_fc = forwards + 2 * backwards, forwards + backwards
    layers = slots * shape.num_layers * layer_weights(shape)
    return 2.0 * (products * layers + tokens * (products * kv + of_fc * fc))


def head_operations(
    config: DFlashConfig, rows: int, slots: int, forwards: int = 1, backwards: int = 1
) -> float:
    """Return the operations of logits over `rows` of the head, so many times, and of as many
    gradients of the hidden states as there are backwards."""
    return 2.0 * (forwards + backwards) * slots * rows * config.layers.hidden_size
