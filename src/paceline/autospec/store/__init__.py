"""The store of drafters: a SQLite file and a folder of artefacts that outlive `kill -9`.

`DrafterStore` changes it, `StoreLease` makes one process its owner. `DrafterVersion` is what it
keeps, and `states.TRANSITIONS` is what may follow what.
"""

from __future__ import annotations

from paceline.autospec.store.artefacts import ArtefactDamaged
from paceline.autospec.store.changes import Author
from paceline.autospec.store.database import LeaseLost, StoreError
from paceline.autospec.store.lease import LeaseHolder, StoreHeld, StoreLease, holder_of
from paceline.autospec.store.records import (
    ALL,
    CohortScore,
    DrafterVersion,
    StoreChange,
    TargetIdentity,
    Transition,
)
from paceline.autospec.store.states import TRANSITIONS, VersionState
from paceline.autospec.store.store import DrafterStore

__all__ = [
    "ALL",
    "TRANSITIONS",
    "ArtefactDamaged",
    "Author",
    "CohortScore",
    "DrafterStore",
    "DrafterVersion",
    "LeaseHolder",
    "LeaseLost",
    "StoreChange",
    "StoreError",
    "StoreHeld",
    "StoreLease",
    "TargetIdentity",
    "Transition",
    "VersionState",
    "holder_of",
]
