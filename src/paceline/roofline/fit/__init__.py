"""Calibrations learned from measured steps, and their errors at steps that they have not seen."""

from __future__ import annotations

from paceline.roofline.fit.learn import Fit, Judged, fit_and_judge, fit_together, summary
from paceline.roofline.fit.points import MeasuredStep, read_points
from paceline.roofline.fit.search import Case, StepTimes

__all__ = [
    "Case",
    "Fit",
    "Judged",
    "MeasuredStep",
    "StepTimes",
    "fit_and_judge",
    "fit_together",
    "read_points",
    "summary",
]
