"""Devices by their datasheets, number formats, and calibrations: how far real engines stay from
the datasheet.

Rates are dense datasheet figures (no sparsity). `hardware.json` lists known devices
in TB/s, TFLOP/s, GB, and GB/s per direction, each with its source.

Under a calibration a component takes max(c, m) + (1 − overlap)·min(c, m), where c is its arithmetic
at the device's peak divided by an efficiency and m its bytes at the device's bandwidth divided by
one. The identity, IDEAL, is the roofline itself: nothing else takes time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, NamedTuple, NotRequired, TypedDict

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field

from paceline.core.documents import Document
from paceline.core.errors import InvalidRequest
from paceline.core.field_types import Expected, OneOf, Whole
from paceline.core.names import find_name, unknown_name


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


DEVICE_KINDS = ("nvidia-gpu", "amd-gpu", "apple-gpu", "accelerator", "cpu")
DeviceKind = Annotated[str, OneOf(DEVICE_KINDS)]


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
    kind: DeviceKind | None = Field(
        default=None,
        description=f"one of {', '.join(DEVICE_KINDS)}; it decides the default calibration",
    )
    source: str = ""
    """where the figures are from"""

    def peak_of(self, precision: str) -> float:
        """FLOP/s at that precision, or at the next wider one that the device has."""
        for rate in WIDER[precision if precision in WIDER else FORMATS[precision].compute]:
            if rate in self.peak:
                return self.peak[rate]
        raise InvalidRequest("precision", precision, f"a rate of {self.name}")  # unreachable


class _Row(TypedDict):
    """A line of hardware.json. `aliases` are other names that people use for the device."""

    name: str
    kind: str
    aliases: NotRequired[list[str]]
    memory_bandwidth_tb_s: float
    peak_tflop_s: dict[str, float]
    memory_gb: float
    link_gb_s: float
    source: str


@cache
def _rows() -> list[_Row]:
    text = resources.files("paceline.roofline").joinpath("hardware.json").read_text("utf-8")
    rows: list[_Row] = json.loads(text)
    return rows


@cache
def _table() -> Mapping[str, Hardware]:
    return {
        row["name"]: Hardware(
            name=row["name"],
            memory_bandwidth=row["memory_bandwidth_tb_s"] * 1e12,
            peak={rate: value * 1e12 for rate, value in row["peak_tflop_s"].items()},
            memory=row["memory_gb"] * 1e9,
            link_bandwidth=row["link_gb_s"] * 1e9,
            kind=row["kind"],
            source=row["source"],
        )
        for row in _rows()
    }


def hardware_names() -> tuple[str, ...]:
    return tuple(_table())


@cache
def hardware_spellings() -> Mapping[str, str]:
    """Return the names of listed devices, by name and by alias."""
    rows = _rows()
    return {word: row["name"] for row in rows for word in (row["name"], *row.get("aliases", ()))}


def hardware(name: str) -> Hardware:
    """Return a listed device by its name, an alias, or the start of a name; case does not matter.
    Raises InvalidRequest with the candidates, or with what is spelt alike."""
    found = find_name("hardware", name, hardware_spellings())
    if found is None:
        expected = f"one of {', '.join(_table())}, or a file that describes one"
        raise unknown_name("hardware", name, hardware_spellings(), expected)
    return _table()[found]


# -- calibrations ----------------------------------------------------------------------------------

KINDS = ("matmul", "attention", "state", "sampling", "communication")
Share = Annotated[
    float,
    Field(ge=1e-6, le=100),
    Expected("a share of the datasheet, above 0 (1 is all of it), at most 100"),
]
Seconds = Annotated[float, Field(ge=0, le=1e6), Expected("seconds, 0 to 1e6")]
Overlap = Annotated[
    float, Field(ge=0, le=1), Expected("a share, 0 (nothing hides) to 1 (all of the shorter)")
]
RowTile = Annotated[Whole, Field(ge=1, le=4096), Expected("a whole number of rows, from 1 to 4096")]
HalfRows = Annotated[float, Field(ge=0, le=1e9), Expected("rows, 0 to 1e9")]


class Calibration(Document):
    """Efficiencies and overheads of an engine. Every default is the identity."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    memory_efficiency: Share = 1.0
    """share of the bandwidth that streaming weights and states reaches"""
    compute_efficiency: Share = 1.0
    """share of the peak that matmuls reach once they have rows enough"""
    attention_memory_efficiency: Share = 1.0
    """share of the bandwidth that attention over the cache reaches"""
    attention_compute_efficiency: Share = 1.0
    """share of the peak that attention over the cache reaches"""
    sampling_efficiency: Share = 1.0
    """share of the bandwidth at which logits are read to choose tokens"""
    overlap: Overlap = 1.0
    """how much of the shorter of loading and computing hides under the longer"""
    row_tile: RowTile = 1
    """rows that a matmul computes at least; rounds the rows up to a multiple"""
    half_rows: HalfRows = 0.0
    """rows at which a matmul reaches half of compute_efficiency (Hockney's n½): the cost of setting
    up a tile of weights, in rows"""
    step_overhead: Seconds = 0.0
    """seconds per forward: scheduling, launch, sampling set-up"""
    layer_overhead: Seconds = 0.0
    """seconds per layer: launches, barriers, norms"""
    request_overhead: Seconds = 0.0
    """seconds per request and layer: block tables, starting an attention"""
    row_overhead: Seconds = 0.0
    """seconds per row and layer: norms, rotary embedding, cache writes"""
    state_overhead: Seconds = 0.0
    """seconds per layer with recurrent states, where a request has more than one row: keeping the
    states that rejected drafts return to"""

    @classmethod
    def read(cls, value: object, where: str = "calibration", context: object = None) -> Calibration:
        """Read the numbers, or the file of `paceline roofline fit`, which tells more than them."""
        if isinstance(value, dict):
            value = value.get("calibration", value)
        return super().read(value, where, context)

    def within_a_step(self) -> Calibration:
        """The same for a pass inside a step, which has paid the step's overhead already."""
        return self.model_copy(update={"step_overhead": 0.0})

    def seconds(
        self, kind: np.ndarray, compute: np.ndarray, memory: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """Time of each component, in seconds. All arrays have one shape.

        `kind` indexes KINDS; `compute` and `memory` are seconds at peak and at full bandwidth;
        `rows` is how many rows the component's matmul has.
        """
        matmul, weights = self.compute_efficiency, self.memory_efficiency
        attention = self.attention_compute_efficiency, self.attention_memory_efficiency
        of_compute = np.array((matmul, attention[0], matmul, 1.0, 1.0))
        of_memory = np.array((weights, attention[1], weights, self.sampling_efficiency, 1.0))
        padded = (np.ceil(rows / self.row_tile) * self.row_tile + self.half_rows) / rows
        arithmetic = compute / of_compute[kind] * np.where(kind == 0, padded, 1.0)
        loading = memory / of_memory[kind]
        hidden = (1.0 - self.overlap) * np.minimum(arithmetic, loading)
        seconds: np.ndarray = np.maximum(arithmetic, loading) + hidden
        return seconds

    def overhead(
        self, batch: np.ndarray, rows: np.ndarray, layers: np.ndarray, states: np.ndarray
    ) -> np.ndarray:
        """Seconds of each forward that belong to no component. `states` counts the layers with
        recurrent states that verify drafts."""
        per_layer = self.layer_overhead + self.request_overhead * batch + self.row_overhead * rows
        return self.step_overhead + layers * per_layer + states * self.state_overhead


IDEAL = Calibration()
# sglang-b200: a joint fit to 24 averages of two published model cards, with and without drafts;
# `python benchmarks/published.py --fit` makes it (see `scenario/published.json` for the points).
# dense-tuned: Llama-3.1-8B on an H100 under SGLang, 158 tok/s for one request (a single point).
# hybrid-sglang: the Qwen3.5 family on B200 under SGLang, plain decoding of one request. Its larger
# models ran on eight devices, whose exchanges are part of the overhead per layer: with it, leave
# communication out (`Options.communication="ignored"`).
PRESETS = {
    "ideal": IDEAL,
    "sglang-b200": Calibration(
        memory_efficiency=0.74,
        attention_memory_efficiency=0.74,
        compute_efficiency=0.25,
        attention_compute_efficiency=0.25,
        overlap=0.1,
        step_overhead=2.75e-3,
        layer_overhead=8e-6,
        state_overhead=103e-6,
    ),
    "dense-tuned": Calibration(
        memory_efficiency=0.75, attention_memory_efficiency=0.75, layer_overhead=10e-6
    ),
    "hybrid-sglang": Calibration(
        memory_efficiency=0.75, attention_memory_efficiency=0.75, layer_overhead=75e-6
    ),
}


def preset(name: str) -> Calibration:
    """Return a calibration by name. Raises InvalidRequest that lists the names."""
    if name not in PRESETS:
        raise InvalidRequest("calibration", name, f"one of {', '.join(PRESETS)}")
    return PRESETS[name]
