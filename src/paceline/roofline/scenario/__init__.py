"""Scenarios: what users state, and the prediction of what speculation would buy them."""

from __future__ import annotations

from paceline.roofline.scenario.answer import Prediction, prediction_schema
from paceline.roofline.scenario.documents import StatedDrafter, StatedScenario
from paceline.roofline.scenario.kinds import KINDS, launch_flags
from paceline.roofline.scenario.prediction import predict
from paceline.roofline.scenario.presets import Preset, listed_presets

__all__ = [
    "KINDS",
    "Prediction",
    "Preset",
    "StatedDrafter",
    "StatedScenario",
    "launch_flags",
    "listed_presets",
    "predict",
    "prediction_schema",
]
