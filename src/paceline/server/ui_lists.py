"""What the calculator offers to choose from."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

from paceline.roofline.architecture import model_config, model_names, read_architecture
from paceline.roofline.calibration import PRESETS
from paceline.roofline.flags import METHODS
from paceline.roofline.hardware import hardware, hardware_names
from paceline.roofline.precision import FORMATS


@cache
def models() -> dict[str, Any]:
    """Listed models, with parameters in all and those that one token uses; and the precisions."""
    found = [read_architecture(model_config(name), name=name) for name in model_names()]
    return {
        "models": [
            {
                "name": name,
                "parameters": each.parameters(),
                "active_parameters": each.active_parameters(),
                "weight_bytes": each.weight_bytes(),
            }
            for name, each in zip(model_names(), found, strict=True)
        ],
        "precisions": list(FORMATS),
        "drafters": list(METHODS),
    }


@cache
def devices() -> dict[str, Any]:
    """Listed hardware (bytes, bytes/s, FLOP/s), and the calibrations that have a name."""
    found = [hardware(name) for name in hardware_names()]
    return {
        "hardware": [
            {
                "name": each.name,
                "memory": each.memory,
                "memory_bandwidth": each.memory_bandwidth,
                "peak": dict(each.peak),
                "source": each.source,
            }
            for each in found
        ],
        "calibrations": {name: asdict(each) for name, each in PRESETS.items()},
    }
