"""Number formats, and what a device can do with them: memory, arithmetic, links.

Rates are dense datasheet figures (no sparsity): the ceiling. `hardware.json` lists known devices
in TB/s, TFLOP/s, GB, and GB/s per direction, each with its source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from paceline.core.documents import Document
from paceline.core.errors import InvalidRequest
from paceline.core.field_types import Expected


@dataclass(frozen=True, slots=True)
class Format:
    """A number format. `bytes` is per stored number, the scales of block-quantised weights
    included; `compute` names the peak at which a matmul multiplies such numbers."""

    name: str
    bytes: float
    compute: str


FORMATS = {
    form.name: form
    for form in (
        Format("fp32", 4.0, "fp32"),
        Format("bf16", 2.0, "bf16"),
        Format("fp16", 2.0, "bf16"),
        Format("fp8", 1.0, "fp8"),  # a scale per 128 × 128 numbers is nothing
        Format("int8", 1.0, "int8"),
        Format("fp4", 0.5, "fp4"),  # scales not counted
        Format("mxfp4", 0.5 + 1 / 32, "fp4"),
        Format("nvfp4", 0.5 + 1 / 16, "fp4"),
        Format("int4", 0.5 + 2 / 128, "bf16"),  # weight-only, groups of 128
        Format("int4-g32", 0.5 + 2 / 32, "bf16"),
    )
}
# A device without the unit computes at the next wider rate it has; the bytes stay as stored.
WIDER = {
    "fp4": ("fp4", "fp8", "bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp32"),
    "int8": ("int8", "bf16", "fp32"),
    "bf16": ("bf16", "fp32"),
    "fp32": ("fp32", "bf16"),  # datasheets that state no fp32 rate: matmuls go through TF32 or bf16
}
LINK_LATENCY = 5e-6  # a call over NVLink takes 5 to 10 µs; used where the user states none
MOST = 1e30  # beyond all devices; between 1 and MOST no time overflows


def _check_peak(peak: dict[str, float]) -> dict[str, float]:
    if not {"bf16", "fp32"} & set(peak):
        raise ValueError("FLOP/s by rate, bf16 or fp32 at least")
    return peak


def _check_rate(rate: str) -> str:
    if rate not in WIDER:
        raise ValueError(f"one of {', '.join(WIDER)}")
    return rate


def _check_link(bandwidth: float) -> float:
    if 0 < bandwidth < 1:
        raise ValueError(NO_LINK)
    return bandwidth


NO_LINK = "bytes per second, at least 1, or 0 for no link"
Rate = Annotated[str, AfterValidator(_check_rate)]
Flops = Annotated[
    float, Field(ge=1, le=MOST), Expected(f"FLOP per second, at least 1, at most {MOST:g}")
]
Bandwidth = Annotated[
    float, Field(ge=1, le=MOST), Expected(f"bytes per second, at least 1, at most {MOST:g}")
]
Link = Annotated[float, Field(ge=0, le=MOST), Expected(NO_LINK), AfterValidator(_check_link)]
Bytes = Annotated[float, Field(ge=1, le=MOST), Expected(f"bytes, at least 1, at most {MOST:g}")]
Latency = Annotated[float, Field(ge=0, le=1e6), Expected("seconds, 0 or more")]


class Hardware(Document):
    """One device."""

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, Field(min_length=1), Expected("a name")] = Field(description="its name")
    memory_bandwidth: Bandwidth = Field(description="bytes/s that the memory moves")
    peak: Annotated[dict[Rate, Flops], AfterValidator(_check_peak)] = Field(
        description="FLOP/s by rate: " + ", ".join(WIDER)
    )
    memory: Bytes = Field(description="bytes")
    link_bandwidth: Link = Field(
        default=0.0, description="bytes/s to a peer, per direction; 0: no link"
    )
    link_latency: Latency = Field(
        default=LINK_LATENCY, description="seconds per call over the link"
    )
    source: str = Field(default="", description="where the figures are from")

    def peak_of(self, precision: str) -> float:
        """FLOP/s at that precision, or at the next wider one that the device has."""
        for rate in WIDER[precision if precision in WIDER else FORMATS[precision].compute]:
            if rate in self.peak:
                return self.peak[rate]
        raise InvalidRequest("precision", precision, f"a rate of {self.name}")  # unreachable


def number_format(name: object, field: str = "precision") -> Format:
    """Return the format of that name. Raises InvalidRequest that lists the names."""
    if not isinstance(name, str) or name not in FORMATS:
        raise InvalidRequest(field, name, f"one of {', '.join(FORMATS)}")
    return FORMATS[name]


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
