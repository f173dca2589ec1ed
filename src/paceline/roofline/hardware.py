"""What a device can do: memory, arithmetic, links. A table of known devices, and your own.

Rates are dense datasheet figures (no sparsity): the ceiling. `hardware.json` says where each one
is from, in TB/s, TFLOP/s, GB, and GB/s per direction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from paceline.core.errors import InvalidRequest, check_number
from paceline.roofline.precision import FORMATS, WIDER

LINK_LATENCY = 5e-6  # a call over NVLink takes 5 to 10 µs; used where the user states none
RATES = tuple(WIDER)
# beyond all devices; between these bounds no time overflows
_RATE = (1.0, 1e30)
MOST_SECONDS = 1e6


@dataclass(frozen=True)
class Hardware:
    """One device. Bandwidths in bytes/s (`link_bandwidth` to its peers, per direction; 0 is no
    link), `memory` in bytes, `link_latency` in seconds per call, `peak` in FLOP/s by rate."""

    name: str
    memory_bandwidth: float
    peak: Mapping[str, float]
    memory: float
    link_bandwidth: float = 0.0
    link_latency: float = LINK_LATENCY
    source: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidRequest("hardware.name", self.name, "a name")
        _check("memory_bandwidth", self.memory_bandwidth, *_RATE, "bytes per second, at least 1")
        _check("memory", self.memory, *_RATE, "bytes, at least 1")
        low, high = _RATE if self.link_bandwidth != 0 else (0.0, 0.0)
        expected = "bytes per second, at least 1, or 0 for no link"
        _check("link_bandwidth", self.link_bandwidth, low, high, expected)
        _check("link_latency", self.link_latency, 0, MOST_SECONDS, "seconds, 0 or more")
        if not isinstance(self.peak, Mapping) or not {"bf16", "fp32"} & set(self.peak):
            raise InvalidRequest(
                "hardware.peak", self.peak, "FLOP/s by rate, bf16 or fp32 at least"
            )
        for rate, value in self.peak.items():
            if rate not in RATES:
                raise InvalidRequest(f"hardware.peak.{rate}", value, f"one of {', '.join(RATES)}")
            _check(f"peak.{rate}", value, *_RATE, "FLOP per second, at least 1")

    def peak_of(self, precision: str) -> float:
        """FLOP/s at that precision, or at the next wider one that the device has."""
        for rate in WIDER[precision if precision in WIDER else FORMATS[precision].compute]:
            if rate in self.peak:
                return self.peak[rate]
        raise InvalidRequest("precision", precision, f"a rate of {self.name}")  # unreachable

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Hardware:
        """A device of your own, in the units of the fields: bytes, seconds, FLOP/s."""
        known = cls.__dataclass_fields__
        for key in values:
            if key not in known:
                raise InvalidRequest(f"hardware.{key}", values[key], f"one of {', '.join(known)}")
        for key in ("name", "memory_bandwidth", "peak", "memory"):
            if key not in values:
                raise InvalidRequest(f"hardware.{key}", None, "a value; it is required")
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | Path) -> Hardware:
        """A device of your own, from a JSON file with one object."""
        try:
            values = json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidRequest("hardware", str(path), f"a JSON file ({error})") from error
        if not isinstance(values, dict):
            raise InvalidRequest("hardware", str(path), "a file with one JSON object")
        return cls.from_dict(values)


@cache
def _table() -> dict[str, Hardware]:
    text = resources.files("paceline.roofline").joinpath("hardware.json").read_text("utf-8")
    table = {}
    for row in json.loads(text):
        table[row["name"]] = Hardware(
            name=row["name"],
            memory_bandwidth=row["memory_bandwidth_tb_s"] * 1e12,
            peak={rate: value * 1e12 for rate, value in row["peak_tflop_s"].items()},
            memory=row["memory_gb"] * 1e9,
            link_bandwidth=row["link_gb_s"] * 1e9,
            source=row["source"],
        )
    return table


def hardware_names() -> tuple[str, ...]:
    return tuple(_table())


def hardware(name: str) -> Hardware:
    """A device of the table, whatever the case of its name. Raises InvalidRequest with the list."""
    found = {key.lower(): device for key, device in _table().items()}.get(str(name).lower())
    if found is None:
        expected = f"one of {', '.join(_table())}, or a file that describes one"
        raise InvalidRequest("hardware", name, expected)
    return found


def _check(field: str, value: object, low: float, high: float, expected: str) -> None:
    check_number(f"hardware.{field}", value, low, high, f"{expected}, at most {high:g}")
