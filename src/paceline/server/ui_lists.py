"""The lists that the calculator offers to choose from."""

from __future__ import annotations

from functools import cache
from typing import Any

from paceline.roofline.architecture import model_names, read_architecture
from paceline.roofline.device import FORMATS, PRESETS, hardware, hardware_names
from paceline.roofline.scenario import KINDS


@cache
def models() -> dict[str, Any]:
    """Return the listed models with their parameters, in all and by token; precisions; drafters."""
    architectures = [read_architecture(name) for name in model_names()]
    return {
        "models": [
            {
                "name": architecture.name,
                "parameters": architecture.parameters(),
                "active_parameters": architecture.active_parameters(),
                "weight_bytes": architecture.weight_bytes(),
            }
            for architecture in architectures
        ],
        "precisions": list(FORMATS),
        "drafters": list(KINDS),
    }


@cache
def devices() -> dict[str, Any]:
    """Return the listed hardware (bytes, bytes/s, FLOP/s) and the preset calibrations."""
    shown = {"name", "memory", "memory_bandwidth", "peak", "source"}
    return {
        "hardware": [hardware(name).model_dump(include=shown) for name in hardware_names()],
        "calibrations": {name: preset.model_dump() for name, preset in PRESETS.items()},
    }
