"""Devices: what they can do by their datasheets, and how far real engines stay from that."""

from __future__ import annotations

from paceline.roofline.device.calibration import IDEAL, PRESETS, Calibration, preset
from paceline.roofline.device.hardware import FORMATS, Hardware, hardware, hardware_names

__all__ = [
    "FORMATS",
    "IDEAL",
    "PRESETS",
    "Calibration",
    "Hardware",
    "hardware",
    "hardware_names",
    "preset",
]
