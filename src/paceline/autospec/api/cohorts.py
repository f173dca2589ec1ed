"""The cohorts of a store and of traces: who drafts for them, how well, and what has happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.autospec.api.answers import CohortMark, ShownCohort
from paceline.autospec.api.curves import SPANS, CohortCurves
from paceline.autospec.loop.journal import ChangeRecord, ChangeStage
from paceline.autospec.policy import DriftPolicy
from paceline.autospec.store import ALL, DrafterStore

MOST_COHORTS = 20
MOST_MARKS = 12  # the latest of a cohort
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class CohortBook:
    """What is known of cohorts: services (rows of the store), changes, curves."""

    store: DrafterStore
    live: Mapping[str, str]
    services: Sequence[Mapping[str, Any]]
    changes: Sequence[ChangeRecord]
    curves: CohortCurves
    policy: DriftPolicy

    def chosen(self) -> tuple[list[str], int]:
        """Return the cohorts that are shown, and how many more there are: all requests, those with
        a drafter or a change of their own, then the largest."""
        sizes = self.curves.sizes
        changing = {change.cohort for change in self.changes if change.ended is None}
        scored = {score.cohort for score in self.store.scores()}
        known = {*self.live, *changing, *sizes, *scored} - {ALL}

        def order(cohort: str) -> tuple[bool, float, str]:
            return cohort not in changing, -sizes.get(cohort, (0, 0.0))[1], cohort

        cohorts = [ALL, *sorted(known, key=order)]
        return cohorts[: MOST_COHORTS + 1], max(0, len(cohorts) - MOST_COHORTS - 1)

    def shown(self, cohort: str) -> ShownCohort:
        """Return all of one cohort."""
        sizes = self.curves.sizes
        total = sum(rounds for _, rounds in sizes.values())
        requests, rounds = sizes.get(cohort, (0, 0.0))
        if cohort == ALL:
            requests, rounds = sum(count for count, _ in sizes.values()), total
        own = self.live.get(cohort)
        back = self.store.previous(cohort)
        return {
            "cohort": cohort,
            "live": own or self.live.get(ALL),
            "is_own": own is not None,
            "has_rollback": back is not None or (own is not None and cohort != ALL),
            "back": None if back is None else back.name,
            "requests": requests,
            "share": rounds / total if total else 0.0,
            "curve": self.curves.curve(cohort),
            "drift": self.curves.drift(cohort, self.policy),
            "marks": sorted(self._marks(cohort), key=lambda mark: mark["time"])[-MOST_MARKS:],
        }

    def _marks(self, cohort: str) -> Iterator[CohortMark]:
        """Yield what happened to a cohort's drafter since its curve begins. One without services of
        its own has those of all requests."""
        since = (self.curves.now - SPANS[self.curves.by][1]) * HOUR
        own = any(service["cohort"] == cohort for service in self.services)
        whose = cohort if own else ALL
        for service in self.services:
            if service["cohort"] == whose and service["started"] >= since:
                yield {"time": service["started"], "kind": "live", "version": service["name"]}
        for change in self.changes:
            if change.cohort != cohort:
                continue
            canary = change.progress.canary
            if canary is not None and canary.began >= since:
                yield {"time": canary.began, "kind": "tried", "version": change.version}
            if change.stage is ChangeStage.STOPPED and (change.ended or 0.0) >= since:
                ended = change.ended or 0.0
                yield {"time": ended, "kind": "stopped", "version": change.version}
