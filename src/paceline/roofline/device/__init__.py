"""Devices by their datasheets, and calibrations: the distance of real engines from them."""

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
