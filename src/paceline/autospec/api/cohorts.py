"""The cohorts of a store and of traces: who drafts for them, how well, and what has happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.autospec.api.answers import CohortDrift, CohortMark, ShownCohort
from paceline.autospec.api.curves import CohortCurves
from paceline.autospec.loop.journal import ChangeRecord, ChangeStage, LoopJournal
from paceline.autospec.loop.routed import RoutedCohort, routed_cohorts
from paceline.autospec.loop.seen import SeenCohort
from paceline.autospec.store import ALL, DrafterStore

MOST_COHORTS = 20
MOST_MARKS = 12  # the latest of a cohort


@dataclass(frozen=True, slots=True)
class CohortBook:
    """What is known of cohorts: services (rows of the store), changes, how their requests are
    shared out, what the loop saw of them, curves."""

    store: DrafterStore
    live: Mapping[str, str]
    services: Sequence[Mapping[str, Any]]
    changes: Sequence[ChangeRecord]
    routed: Mapping[str, RoutedCohort]
    seen: Mapping[str, SeenCohort]
    curves: CohortCurves

    @classmethod
    def of(cls, store: DrafterStore, journal: LoopJournal, curves: CohortCurves) -> CohortBook:
        """Read what a store has besides the curves."""
        return cls(
            store,
            store.live(),
            journal.services(),
            journal.changes(),
            {routed.cohort: routed for routed in routed_cohorts(store)},
            {seen.cohort: seen for seen in journal.seen()},
            curves,
        )

    def chosen(self) -> tuple[list[str], int]:
        """Return the cohorts that are shown, and how many more there are: all requests, those with
        a drafter or a change of their own, then the largest."""
        sizes = self.curves.sizes
        changing = {change.cohort for change in self.changes if change.ended is None}
        scored = {score.cohort for score in self.store.scores()}
        known = {*self.live, *changing, *sizes, *scored, *self.routed} - {ALL}

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
        own, routed = self.live.get(cohort), self.routed.get(cohort)
        back = self.store.previous(cohort)
        return {
            "cohort": cohort,
            "live": own or self.live.get(ALL),
            "is_own": own is not None,
            "shares": {} if routed is None else dict(routed.shares),
            "shared_because": "" if routed is None else routed.why,
            "has_rollback": back is not None or (own is not None and cohort != ALL),
            "back": None if back is None else back.name,
            "requests": requests,
            "share": rounds / total if total else 0.0,
            "curve": self.curves.curve(cohort),
            "drift": self._drift(cohort),
            "marks": sorted(self._marks(cohort), key=lambda mark: mark["time"])[-MOST_MARKS:],
        }

    def _drift(self, cohort: str) -> CohortDrift | None:
        """Return what the loop last saw, by its policy and its calendar, or else what the curves
        say."""
        seen = self.seen.get(cohort)
        if seen is None:
            return self.curves.drift(cohort)
        return {
            "by_loop": True,
            "reference_days": seen.reference_days,
            "days": seen.days,
            "expected": seen.usual,
            "seen": seen.judged,
            "change": seen.change,
            "error": None,
        }

    def _marks(self, cohort: str) -> Iterator[CohortMark]:
        """Yield what happened to a cohort's drafter since its curve begins. One without services of
        its own has those of all requests."""
        span = self.curves.span
        since = self.curves.end * span.unit - span.seconds
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
