"""How far a real engine stays from the roofline: efficiencies, overheads, and presets of them.

A component takes max(c, m) + (1 − overlap)·min(c, m), where c is its arithmetic at the device's
peak divided by an efficiency and m its bytes at the device's bandwidth divided by one. The
identity, IDEAL, is the roofline itself: the datasheet's rates, and nothing else takes time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from paceline.core.errors import InvalidRequest, check_number

Number = TypeVar("Number", float, np.ndarray)
KINDS = ("matmul", "attention", "state", "sampling", "communication")
_SHARE = (1e-6, 100.0, "a share of the datasheet, above 0 (1 is all of it)")
_SECONDS = (0.0, 1e6, "seconds, 0 to 1e6")
RANGES = (
    ("memory_efficiency", *_SHARE),
    ("compute_efficiency", *_SHARE),
    ("attention_memory_efficiency", *_SHARE),
    ("attention_compute_efficiency", *_SHARE),
    ("sampling_efficiency", *_SHARE),
    ("overlap", 0.0, 1.0, "a share, 0 (nothing hides) to 1 (all of the shorter)"),
    ("row_tile", 1, 4096, "a whole number of rows, 1 to 4096"),
    ("half_rows", 0.0, 1e9, "rows, 0 to 1e9"),
    ("step_overhead", *_SECONDS),
    ("layer_overhead", *_SECONDS),
    ("request_overhead", *_SECONDS),
    ("row_overhead", *_SECONDS),
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Every default is the identity. Overheads are seconds, efficiencies shares of the datasheet.

    memory_efficiency    share of the bandwidth that streaming weights and states reaches
    compute_efficiency   share of the peak that matmuls reach once they have rows enough
    attention_memory_efficiency, attention_compute_efficiency   the same of attention over the cache
    sampling_efficiency  share of the bandwidth at which logits are read to choose tokens
    overlap              how much of the shorter of loading and computing hides under the longer
    row_tile             rows that a matmul computes at least; it rounds the rows up to a multiple
    half_rows            rows at which a matmul reaches half of compute_efficiency (Hockney's n½):
                         what setting up a tile of weights costs, in rows
    step_overhead        once per forward: scheduling, launch, sampling set-up
    layer_overhead       per layer: launches, barriers, norms whose time does not hang on rows
    request_overhead     per request and layer: looking up block tables, starting an attention
    row_overhead         per row and layer: norms, rotary embedding, activation, cache writes
    """

    memory_efficiency: float = 1.0
    compute_efficiency: float = 1.0
    attention_memory_efficiency: float = 1.0
    attention_compute_efficiency: float = 1.0
    sampling_efficiency: float = 1.0
    overlap: float = 1.0
    row_tile: int = 1
    half_rows: float = 0.0
    step_overhead: float = 0.0
    layer_overhead: float = 0.0
    request_overhead: float = 0.0
    row_overhead: float = 0.0

    def __post_init__(self) -> None:
        for name, low, high, expected in RANGES:
            check_number(f"calibration.{name}", getattr(self, name), low, high, expected)
        if self.row_tile != int(self.row_tile):
            raise InvalidRequest("calibration.row_tile", self.row_tile, "a whole number of rows")

    def efficiencies(self) -> tuple[np.ndarray, np.ndarray]:
        """(of compute, of memory), each indexed by a kind's place in KINDS."""
        matmul = self.compute_efficiency
        memory = self.memory_efficiency
        compute = (matmul, self.attention_compute_efficiency, matmul, 1.0, 1.0)
        bytes_ = (memory, self.attention_memory_efficiency, memory, self.sampling_efficiency, 1.0)
        return np.array(compute), np.array(bytes_)

    def seconds(
        self, kind: np.ndarray, compute: np.ndarray, memory: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """Time of each component. All arrays have one shape.

        `kind` indexes KINDS; `compute` and `memory` are seconds at peak and at full bandwidth;
        `rows` is how many rows the component's matmul has.
        """
        of_compute, of_memory = self.efficiencies()
        padded = (np.ceil(rows / self.row_tile) * self.row_tile + self.half_rows) / rows
        arithmetic = compute / of_compute[kind] * np.where(kind == 0, padded, 1.0)
        loading = memory / of_memory[kind]
        hidden = (1.0 - self.overlap) * np.minimum(arithmetic, loading)
        return np.maximum(arithmetic, loading) + hidden

    def overhead(self, batch: Number, rows: Number, layers: Number | int) -> Number:
        """Seconds of one forward, or of many, that are no component's."""
        per_layer = self.layer_overhead + self.request_overhead * batch + self.row_overhead * rows
        return self.step_overhead + layers * per_layer

    def to_dict(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """From plain JSON. What is left out is the identity; an unknown name is refused."""
        known = [name for name, *_ in RANGES]
        for name in values:
            if name not in known:
                expected = f"a field of a calibration: {', '.join(known)}"
                raise InvalidRequest(f"calibration.{name}", values[name], expected)
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | Path) -> Calibration:
        try:
            values = json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidRequest("calibration", str(path), f"a JSON file ({error})") from error
        if not isinstance(values, dict):
            raise InvalidRequest("calibration", str(path), "a file with one JSON object")
        return cls.from_dict(values.get("calibration", values))


IDEAL = Calibration()
# dense-tuned: Llama-3.1-8B on an H100 under SGLang, 158 tok/s for one request (a single point).
# hybrid-sglang: the Qwen3.5 family on B200 under SGLang, plain decoding of one request. Its larger
# models ran on eight devices, whose exchanges are part of the overhead per layer: with it, leave
# communication out (`Options.communication="ignored"`).
PRESETS = {
    "ideal": IDEAL,
    "dense-tuned": Calibration(
        memory_efficiency=0.75, attention_memory_efficiency=0.75, layer_overhead=10e-6
    ),
    "hybrid-sglang": Calibration(
        memory_efficiency=0.75, attention_memory_efficiency=0.75, layer_overhead=75e-6
    ),
}


def preset(name: str) -> Calibration:
    """A calibration by name. Raises InvalidRequest that lists the names."""
    if name not in PRESETS:
        raise InvalidRequest("calibration", name, f"one of {', '.join(PRESETS)}")
    return PRESETS[name]
