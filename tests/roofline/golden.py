"""Helpers of this room's tests: configs, geometric acceptance, Finn's model, plain optima."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.roofline.acceptance import AcceptanceModel
from paceline.roofline.architecture import Architecture, Layers, read_architecture
from paceline.roofline.architecture.components import Component
from paceline.roofline.architecture.work import Work, distinct_experts
from paceline.roofline.cost import (
    Deployment,
    DrafterCost,
    Options,
    SpeedupRow,
    StepTime,
    Workload,
    speedup_curve,
)
from paceline.roofline.device import IDEAL, Calibration, Hardware

CONFIGS = Path(__file__).parent / "configs"


def model(name: str, **options: Any) -> Architecture:
    """The architecture of the one config whose file's name ends so."""
    (file,) = CONFIGS.glob(f"*--{name}.json")
    return read_architecture(file, **options)


def forward_time(
    architecture: Architecture,
    hardware: Hardware,
    load: Workload,
    options: Options | None = None,
    calibration: Calibration = IDEAL,
) -> StepTime:
    deployment = Deployment(architecture, hardware, options or Options())
    return deployment.forward_time(load, calibration)


def optimum(curve: Iterable[SpeedupRow]) -> SpeedupRow:
    """The fastest row; of equals the shortest draft."""
    return max(curve, key=lambda row: (row.speedup, -row.draft_length))


def by_batch(
    deployment: Deployment,
    drafter: DrafterCost,
    acceptance: AcceptanceModel,
    batches: Sequence[int],
) -> list[tuple[int, SpeedupRow]]:
    """(batch, optimum): the plain twin of what `scenario.views` computes for all batches at
    once."""
    return [
        (batch, optimum(speedup_curve(deployment, drafter, acceptance, Workload(batch))))
        for batch in batches
    ]


def variance(acceptance: AcceptanceModel, draft_length: int) -> float:
    """Variance of the number of tokens that one round commits."""
    shares = acceptance.commit_probabilities(draft_length)
    committed = np.arange(1, draft_length + 2)
    mean = float(shares @ committed)
    return float(shares @ (committed - mean) ** 2)


@dataclass(frozen=True)
class Geometric(AcceptanceModel):
    """Every drafted token is accepted with the same chance."""

    alpha: float

    def expected_length(self, draft_length: int) -> float:
        if self.alpha == 1:
            return draft_length + 1.0
        return (1 - self.alpha ** (draft_length + 1)) / (1 - self.alpha)

    def _survival(self, draft_length: int) -> np.ndarray:
        raise NotImplementedError("the plain curve asks for expected lengths alone")


@dataclass(frozen=True)
class _FinnPart(Component):
    """Finn's units: bytes at the full bandwidth, so a device of 1 byte/s with ridges for peaks."""

    name: str

    def work(self, load: Workload, total: Workload, options: Options) -> Work:
        rows = load.rows
        if self.name == "projections":
            return Work(self.name, "matmul", 2 * 107e6 * rows, 107e6, "fp8", rows)
        if self.name == "experts":
            touched = distinct_experts(256, 6, rows) + 1
            moved = touched * 25.2e6 * 0.53
            return Work(self.name, "matmul", 2 * 7 * 25.2e6 * rows, moved, "fp4", rows)
        pairs = load.batch * load.context
        flops = 2 * 69632 * load.rows_per_request * pairs
        return Work(self.name, "attention", flops, 576 * pairs, "bf16", rows)


FINN = Architecture(
    name="finn",
    family="finn",
    hidden=4096,
    vocabulary=129280,
    layers=(Layers(1, tuple(map(_FinnPart, ("projections", "experts", "attention")))),),
    head=(),
)
FINN_DEVICE = Hardware(
    name="ridges", memory_bandwidth=1.0, peak={"fp8": 563, "fp4": 1125, "bf16": 281}, memory=1e12
)
