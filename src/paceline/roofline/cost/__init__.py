"""The time and the memory of forwards and drafts, and the speedup that comes out."""

from __future__ import annotations

from paceline.roofline.architecture.work import Options, Workload
from paceline.roofline.cost.deployment import Deployment, StepTime
from paceline.roofline.cost.drafting import DrafterCost, Fraction, Ideal, Lookup
from paceline.roofline.cost.speedup import SpeedupRow, speedup_curve

__all__ = [
    "Deployment",
    "DrafterCost",
    "Fraction",
    "Ideal",
    "Lookup",
    "Options",
    "SpeedupRow",
    "StepTime",
    "Workload",
    "speedup_curve",
]
