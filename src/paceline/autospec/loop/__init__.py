"""The loop of autospec: observe, decide, change one step, and have servers do what the store says.

It keeps nothing of its own: every decision follows from the traces and the store, every step of a
change is one transaction there. So it may be killed at any moment, and goes on where it was.
"""

from __future__ import annotations

from paceline.autospec.loop.decide import LoopAction, LoopDecision
from paceline.autospec.loop.journal import ChangeRecord, ChangeStage, LoopJournal
from paceline.autospec.loop.loop import Autospec, LoopSettings, rollback
from paceline.autospec.loop.news import LoopNews
from paceline.autospec.loop.reconcile import WantedServing, reconcile, wanted

__all__ = [
    "Autospec",
    "ChangeRecord",
    "ChangeStage",
    "LoopAction",
    "LoopDecision",
    "LoopJournal",
    "LoopNews",
    "LoopSettings",
    "WantedServing",
    "reconcile",
    "rollback",
    "wanted",
]
