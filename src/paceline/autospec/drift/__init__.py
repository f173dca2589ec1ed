"""Drift: is a change of acceptance season, mix, a deployment, a loop, or a drafter gone stale?"""

from __future__ import annotations

from paceline.autospec.drift.cells import HourCells, RequestColumns
from paceline.autospec.drift.classify import assess
from paceline.autospec.drift.ledger import Ledger, LedgerEntry, LedgerKind
from paceline.autospec.drift.regional import regional_advice
from paceline.autospec.drift.report import DriftDecision, DriftKind, DriftReport

__all__ = [
    "DriftDecision",
    "DriftKind",
    "DriftReport",
    "HourCells",
    "Ledger",
    "LedgerEntry",
    "LedgerKind",
    "RequestColumns",
    "assess",
    "regional_advice",
]
