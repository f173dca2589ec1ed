"""What the tests of this room share: the configs, geometric acceptance, Finn's model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.roofline.architecture import Architecture, Layers, read_architecture
from paceline.roofline.correlation import distinct_experts
from paceline.roofline.hardware import Hardware
from paceline.roofline.work import Options, Work, Workload

CONFIGS = Path(__file__).parent / "configs"


def model(name: str, **options: Any) -> Architecture:
    """The architecture of the one config whose file's name ends so."""
    (file,) = CONFIGS.glob(f"*--{name}.json")
    return read_architecture(file, **options)


@dataclass(frozen=True)
class Geometric:
    """Every drafted token is accepted with the same chance."""

    alpha: float

    def expected_length(self, draft_length: int) -> float:
        if self.alpha == 1:
            return draft_length + 1.0
        return (1 - self.alpha ** (draft_length + 1)) / (1 - self.alpha)


@dataclass(frozen=True)
class _FinnPart:
    """Finn's units: bytes at the full bandwidth, so a device of 1 byte/s with ridges for peaks."""

    name: str
    parameters = 0
    active_parameters = 0
    weight_bytes = 0.0

    def cache_bytes(self, context: int) -> float:
        return 0.0

    def cache_share(self, options: Options) -> float:
        return 1.0

    def work(self, load: Workload, whole: Workload, options: Options) -> Iterator[Work]:
        rows = load.rows
        if self.name == "projections":
            yield Work(self.name, "matmul", 2 * 107e6 * rows, 107e6, "fp8", rows)
        elif self.name == "experts":
            touched = distinct_experts(256, 6, rows) + 1
            yield Work(
                self.name, "matmul", 2 * 7 * 25.2e6 * rows, touched * 25.2e6 * 0.53, "fp4", rows
            )
        else:
            pairs = load.batch * load.context
            flops = 2 * 69632 * load.rows_per_request * pairs
            yield Work(self.name, "attention", flops, 576 * pairs, "bf16", rows)


FINN = Architecture(
    name="finn",
    family="finn",
    hidden=4096,
    vocabulary=129280,
    layers=(Layers(1, tuple(map(_FinnPart, ("projections", "experts", "attention")))),),
    head=(),
)
FINN_DEVICE = Hardware("ridges", 1.0, {"fp8": 563, "fp4": 1125, "bf16": 281}, 1e12)
