"""The time and the memory of forwards and drafts, and the speedup that comes out."""

from __future__ import annotations

from paceline.roofline.architecture.work import Options, Workload
from paceline.roofline.cost.deployment import Deployment, StepTime
from paceline.roofline.cost.drafters import DrafterCost, free_drafts, look_up, share_of_step
from paceline.roofline.cost.speedup import SpeedupRow, speedup_curve

__all__ = [
    "Deployment",
    "DrafterCost",
    "Options",
    "SpeedupRow",
    "StepTime",
    "Workload",
    "free_drafts",
    "look_up",
    "share_of_step",
    "speedup_curve",
]
