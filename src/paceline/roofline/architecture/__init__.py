"""Networks as the roofline sees them: read off configs, as components that ask work of a device."""

from __future__ import annotations

from paceline.roofline.architecture.families import read_architecture
from paceline.roofline.architecture.network import (
    Architecture,
    Layers,
    load_config,
    model_config,
    model_names,
)

__all__ = [
    "Architecture",
    "Layers",
    "load_config",
    "model_config",
    "model_names",
    "read_architecture",
]
