"""Canary: a new drafter on a share of the requests, until it is surely good, or surely worse.

Speculation is lossless, so a bad drafter costs its share of the requests speed, never text.
"""

from __future__ import annotations

from paceline.autospec.canary.judge import (
    CanaryAction,
    CanaryJudgement,
    CanaryVerdict,
    advanced,
    judge,
)
from paceline.autospec.canary.routes import canary_rule
from paceline.autospec.canary.state import CanaryRequests, CanaryState, begun, observed

__all__ = [
    "CanaryAction",
    "CanaryJudgement",
    "CanaryRequests",
    "CanaryState",
    "CanaryVerdict",
    "advanced",
    "begun",
    "canary_rule",
    "judge",
    "observed",
]
