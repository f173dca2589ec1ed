"""Drift: is a change of acceptance season, mix, a deployment, a loop, or a drafter gone stale?"""

from __future__ import annotations

from paceline.autospec.drift.case import DriftCase
from paceline.autospec.drift.cells import HourCells, RequestColumns
from paceline.autospec.drift.classify import assess, classify, drift_case
from paceline.autospec.drift.ledger import Ledger, LedgerEntry, LedgerKind
from paceline.autospec.drift.positions import PositionCells, RoundColumns
from paceline.autospec.drift.regional import RegionalAdvice, regional_advice
from paceline.autospec.drift.report import (
    DriftDecision,
    DriftKind,
    DriftReport,
    FallenCohort,
    RetrainWorth,
)

__all__ = [
    "DriftCase",
    "DriftDecision",
    "DriftKind",
    "DriftReport",
    "FallenCohort",
    "HourCells",
    "Ledger",
    "LedgerEntry",
    "LedgerKind",
    "PositionCells",
    "RegionalAdvice",
    "RequestColumns",
    "RetrainWorth",
    "RoundColumns",
    "assess",
    "classify",
    "drift_case",
    "regional_advice",
]
