"""Acceptance, the quality of drafts: its models, and the forms in which users state one."""

from __future__ import annotations

from paceline.roofline.acceptance.document import (
    StatedAcceptance,
    acceptance_of,
)
from paceline.roofline.acceptance.models import (
    AcceptanceModel,
    BetaGeometric,
    Geometric,
    Profile,
    Trace,
    of_length,
)

__all__ = [
    "AcceptanceModel",
    "BetaGeometric",
    "Geometric",
    "Profile",
    "StatedAcceptance",
    "Trace",
    "acceptance_of",
    "of_length",
]
