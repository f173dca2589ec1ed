"""Number formats, and what a device can do with them: memory, arithmetic, links.

Rates are dense datasheet figures (no sparsity): the ceiling. `hardware.json` lists known devices
in TB/s, TFLOP/s, GB, and GB/s per direction, each with its source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field

from paceline.core.documents import Document
from paceline.core.errors import InvalidRequest
from paceline.core.field_types import Expected, OneOf


class Format(NamedTuple):
    """A number format. `bytes` is per stored number, the scales of block-quantised weights
    included; `compute` names the peak at which a matmul multiplies such numbers."""

    bytes: float
    compute: str


FORMATS = {
    "fp32": Format(4.0, "fp32"),
    "bf16": Format(2.0, "bf16"),
    "fp16": Format(2.0, "bf16"),
    "fp8": Format(1.0, "fp8"),  # a scale per 128 × 128 numbers is nothing
    "int8": Format(1.0, "int8"),
    "fp4": Format(0.5, "fp4"),  # scales not counted
    "mxfp4": Format(0.5 + 1 / 32, "fp4"),
    "nvfp4": Format(0.5 + 1 / 16, "fp4"),
    "int4": Format(0.5 + 2 / 128, "bf16"),  # weight-only, groups of 128
    "int4-g32": Format(0.5 + 2 / 32, "bf16"),
}
# A device without the unit computes at the next wider rate it has; the bytes stay as stored.
WIDER = {
    "fp4": ("fp4", "fp8", "bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp32"),
    "int8": ("int8", "bf16", "fp32"),
    "bf16": ("bf16", "fp32"),
    "fp32": ("fp32", "bf16"),  # datasheets that state no fp32 rate: matmuls go through TF32 or bf16
}
MOST = 1e30  # beyond all devices; between 1 and MOST no time overflows


def _check_peak(peak: dict[str, float]) -> dict[str, float]:
    if not {"bf16", "fp32"} & set(peak):
        raise ValueError("FLOP/s by rate, bf16 or fp32 at least")
    return peak


Rate = Annotated[str, OneOf(tuple(WIDER))]
Flops = Annotated[
    float, Field(ge=1, le=MOST), Expected(f"FLOP per second, at least 1, at most {MOST:g}")
]
Bandwidth = Annotated[
    float, Field(ge=1, le=MOST), Expected(f"bytes per second, at least 1, at most {MOST:g}")
]
Link = Annotated[
    float,
    Field(ge=0, le=MOST),
    Expected("bytes per second, at least 1, or 0 for no link", lambda rate: not 0 < rate < 1),
]
Bytes = Annotated[float, Field(ge=1, le=MOST), Expected(f"bytes, at least 1, at most {MOST:g}")]
Latency = Annotated[float, Field(ge=0, le=1e6), Expected("seconds, 0 or more")]
Name = Annotated[str, Field(min_length=1), Expected("a name")]


class Hardware(Document):
    """One device."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    name: Name
    """its name"""
    memory_bandwidth: Bandwidth
    """bytes/s that the memory moves"""
    peak: Annotated[dict[Rate, Flops], AfterValidator(_check_peak)] = Field(
        description="FLOP/s by rate: " + ", ".join(WIDER)
    )
    memory: Bytes
    """bytes"""
    link_bandwidth: Link = 0.0
    """bytes/s to a peer, per direction; 0: no link"""
    link_latency: Latency = 5e-6  # a call over NVLink takes 5 to 10 µs
    """seconds per call over the link"""
    source: str = ""
    """where the figures are from"""

    def peak_of(self, precision: str) -> float:
        """FLOP/s at that precision, or at the next wider one that the device has."""
        for rate in WIDER[precision if precision in WIDER else FORMATS[precision].compute]:
            if rate in self.peak:
                return self.peak[rate]
        raise InvalidRequest("precision", precision, f"a rate of {self.name}")  # unreachable


@cache
def _table() -> Mapping[str, Hardware]:
    text = resources.files("paceline.roofline.device").joinpath("hardware.json").read_text("utf-8")
    return {
        row["name"]: Hardware(
            name=row["name"],
            memory_bandwidth=row["memory_bandwidth_tb_s"] * 1e12,
            peak={rate: value * 1e12 for rate, value in row["peak_tflop_s"].items()},
            memory=row["memory_gb"] * 1e9,
            link_bandwidth=row["link_gb_s"] * 1e9,
            source=row["source"],
        )
        for row in json.loads(text)
    }


def hardware_names() -> tuple[str, ...]:
    return tuple(_table())


def hardware(name: str) -> Hardware:
    """Return a device of the table; case does not matter. Raises InvalidRequest with the list."""
    for listed, device in _table().items():
        if listed.lower() == name.lower():
            return device
    expected = f"one of {', '.join(_table())}, or a file that describes one"
    raise InvalidRequest("hardware", name, expected)
