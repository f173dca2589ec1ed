"""What was done before: trainings, swaps, deployments and open findings, as decisions need them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from paceline.autospec.drift.cells import HOUR
from paceline.autospec.sums import IntArray


class LedgerKind(StrEnum):
    TRAINING = "training"  # a drafter is trained anew
    SWAP = "swap"  # another drafter became live: its reference begins
    DEPLOYMENT = "deployment"  # engine, template, target or a sampling default changed
    FINDING = "finding"  # a deployment step that nobody has settled yet
    ACCEPTED = "accepted"  # somebody took the new level for good: a new reference begins


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One event. No cohorts means all of them; `end` is None while it lasts."""

    kind: LedgerKind
    time: float
    cohorts: frozenset[str] = frozenset()
    end: float | None = None

    def concerns(self, cohort: str) -> bool:
        return not self.cohorts or cohort in self.cohorts


@dataclass(frozen=True, slots=True)
class Ledger:
    """All events, oldest first."""

    entries: tuple[LedgerEntry, ...] = ()

    def begins(self, cohorts: Iterable[str]) -> IntArray:
        """Return the hour since the epoch from which each cohort's present drafter counts."""
        starts = (LedgerKind.SWAP, LedgerKind.ACCEPTED)
        return np.array(
            [
                max((-int(-e.time // HOUR) for e in self._of(c, *starts)), default=0)
                for c in cohorts
            ],
            dtype=np.int64,
        )

    def training(self, cohort: str) -> LedgerEntry | None:
        """Return the training of a cohort's drafter that still runs."""
        running = (e for e in self._of(cohort, LedgerKind.TRAINING) if e.end is None)
        return next(running, None)

    def last_change(self, cohort: str) -> float | None:
        """Return when the cohort's drafter was last trained or swapped."""
        kinds = (LedgerKind.TRAINING, LedgerKind.SWAP)
        times = [e.time if e.end is None else e.end for e in self._of(cohort, *kinds)]
        return max(times, default=None)

    def trainings_since(self, time: float) -> int:
        """Return the number of trainings that began after `time`."""
        return sum(e.kind is LedgerKind.TRAINING and e.time > time for e in self.entries)

    def open_finding(self, cohort: str) -> LedgerEntry | None:
        """Return the deployment step that concerns the cohort and is not settled."""
        found = (e for e in self._of(cohort, LedgerKind.FINDING) if e.end is None)
        return next(found, None)

    def deployment_near(self, time: float, hours: float) -> LedgerEntry | None:
        """Return a deployment within `hours` of `time`."""
        return next(
            (
                e
                for e in self.entries
                if e.kind is LedgerKind.DEPLOYMENT and abs(e.time - time) <= hours * HOUR
            ),
            None,
        )

    def _of(self, cohort: str, *kinds: LedgerKind) -> list[LedgerEntry]:
        return [e for e in self.entries if e.kind in kinds and e.concerns(cohort)]
