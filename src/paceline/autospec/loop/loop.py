"""One turn of the loop: observe, decide, take every change one step, and reconcile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.autospec.drift import (
    DriftKind,
    DriftReport,
    HourCells,
    PositionCells,
    classify,
    drift_case,
)
from paceline.autospec.loop.calendar import DriftCalendar
from paceline.autospec.loop.change import SETTLED_SECONDS, ChangeStep, ChangeTools, CohortScorer
from paceline.autospec.loop.corpora import expiry, tidy_corpora
from paceline.autospec.loop.decide import LoopAction, LoopDecision, Situation, decide
from paceline.autospec.loop.history import given_up, ledger_entries, only_tried
from paceline.autospec.loop.journal import ChangeOrigin, ChangeStage, LoopJournal
from paceline.autospec.loop.observe import TraceFolder
from paceline.autospec.loop.reconcile import reconcile
from paceline.autospec.loop.routed import RoutedCohort, routed_cohorts
from paceline.autospec.loop.routing import CohortRouting
from paceline.autospec.loop.seen import SeenCohort, seen_cohorts
from paceline.autospec.loop.training import WeightsTrainer
from paceline.autospec.loop.weights import (
    first_cases,
    weights_cases,
    weights_decisions,
    weights_trainings,
)
from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.serving import ServedDrafters
from paceline.autospec.store import (
    ALL,
    Author,
    DrafterStore,
    DrafterVersion,
    LeaseLost,
    StoreChange,
    TargetIdentity,
    VersionState,
)
from paceline.autospec.store.store import UNKNOWN_TARGET
from paceline.core import PacelineError

log = logging.getLogger(__name__)
LONGEST_WAIT = 300.0  # seconds between attempts while something is not there
ORIGINS = {
    LoopAction.RENEW_CORPUS: ChangeOrigin.RENEWAL,
    LoopAction.TRAIN: ChangeOrigin.WEIGHTS,
    LoopAction.TRY: ChangeOrigin.PUSHED,
}


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How the loop decides, scores and trains. `target` is what is known of the target besides what
    the versions of the store say; without a `scorer` the canary alone judges, and without `model`,
    the target as `paceline train` takes it, no weights are trained."""

    policy: AutospecPolicy
    scorer: CohortScorer | None = None
    target: TargetIdentity = UNKNOWN_TARGET
    model: str | None = None


@dataclass(frozen=True, slots=True)
class SeenHours:
    """The sums of the hours until a time, without requests of some drafters."""

    without: frozenset[str] = frozenset()
    until: float = 0.0
    cells: HourCells = field(default_factory=HourCells)
    positions: PositionCells = field(default_factory=PositionCells)


class Autospec:
    """The loop over one store, one folder of traces, and what serves. It holds nothing that a new
    one would not find out again."""

    def __init__(
        self,
        store: DrafterStore,
        traces: TraceFolder,
        serving: ServedDrafters,
        settings: LoopSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store, self.traces, self.serving = store, traces, serving
        self.policy, self.clock = settings.policy, clock
        self.calendar = DriftCalendar(settings.policy.drift.day_seconds)
        self.journal = LoopJournal(store)
        trainer = WeightsTrainer(store, settings.policy.training, settings.model)
        self._tools = ChangeTools(
            store, self.journal, traces, settings.policy, clock, trainer, settings.scorer,
            settings.target,
        )  # fmt: skip
        self._routing = CohortRouting(self._tools, self.calendar)
        self._seen = SeenHours()

    def tick(self) -> list[LoopDecision]:
        """Do one turn, and return what was decided. Raises ServingError, StoreError and
        InvalidRequest; the next turn goes on from there."""
        missing = reconcile(self.serving, self.store)
        ready = {name for name, there in self.serving.loaded().items() if there.is_ready}
        reports, seen = self._assessed()
        self._routing.update()
        decisions = self._decided(reports, seen, routed_cohorts(self.store))
        self._note(decisions, seen)
        for change in self.journal.active():
            ChangeStep(self._tools, change, ready - missing.refused.keys(), missing).take()
        reconcile(self.serving, self.store)
        self._forget()
        return decisions

    def decided(self) -> list[LoopDecision]:
        """Return what is to be done now, and do nothing."""
        return self._decided(*self._assessed(), self._routing.favoured())

    def _decided(
        self,
        reports: Sequence[DriftReport],
        seen: Sequence[SeenCohort],
        routed: Sequence[RoutedCohort],
    ) -> list[LoopDecision]:
        """Return what follows from reports, those that begin a change first, and how requests are
        shared out."""
        now, takes_corpora = self.clock(), self.serving.takes_corpora()
        if takes_corpora:
            cases = weights_cases(self._tools, seen, now)
        else:
            cases = first_cases(self._tools, reports, now)
        ledger = self.calendar.stretched(weights_trainings(self.journal.changes()))
        weights = weights_decisions(cases, ledger, now * self.calendar.stretch, self.policy)
        decisions = [*decide(self._situation(reports, takes_corpora), self.policy), *weights]
        decisions.sort(key=lambda decision: not decision.action.begins_change)
        return [*decisions, *(cohort.decision() for cohort in routed)]

    def _assessed(self) -> tuple[Sequence[DriftReport], Sequence[SeenCohort]]:
        """Return what drift says of all whole hours, and what is seen of each cohort."""
        now = self.clock()
        hour = self.calendar.hour_of(now - SETTLED_SECONDS)
        seen = self._observed(self.calendar.clock(hour))
        cells = seen.cells
        if not cells.cohorts:
            return (), ()
        ledger = self.calendar.stretched(ledger_entries(self.journal, cells.cohorts))
        case = drift_case(cells, ledger, hour, self.policy)
        reports = classify(case, seen.positions)
        return [*map(self.calendar.shrunk, reports)], seen_cohorts(case, now)

    def _situation(self, reports: Sequence[DriftReport], takes_corpora: bool) -> Situation:
        now = self.clock()
        changing = {change.cohort: change.version for change in self.journal.active()}
        return Situation(
            now=now,
            takes_corpora=takes_corpora,
            reports=reports,
            live=self.store.live(),
            changing=changing,
            failed=given_up(self.journal.changes()),
            pushed=self._pushed(set(changing.values())),
            expiring=self._expiring(now),
        )

    def run(
        self, every: float, ended: threading.Event, tell: Callable[[], None] = lambda: None
    ) -> None:
        """Do a turn every so many seconds until `ended` is set, and call `tell` after each one.
        Whatever is not there is named, and tried again after a while that grows. Raises LeaseLost
        where another process took over."""
        wait = every
        while not ended.is_set():
            try:
                self.tick()
                wait = every
            except LeaseLost:
                raise
            except (PacelineError, OSError) as error:
                wait = min(wait * 2, max(LONGEST_WAIT, every))
                log.warning("%s; tried again in %.0f s", error, wait)
            tell()
            ended.wait(wait)

    def _observed(self, until: float) -> SeenHours:
        """Return the sums of all hours until then. Those that were read already are not read again;
        read anew, they would be the same."""
        tried = only_tried(self.journal)
        seen = self._seen if self._seen.without == tried else SeenHours(tried)
        if until > seen.until:
            hours = seen.until, until, tried, self.calendar
            cells = seen.cells + self.traces.cells(*hours)
            seen = SeenHours(tried, until, cells, seen.positions + self.traces.positions(*hours))
        self._seen = seen
        return seen

    def _pushed(self, changing: set[str]) -> dict[str, str]:
        """Return the versions that somebody promoted to canary, each with the cohort that it is
        tried for: the one that its parent serves, or else all requests."""
        pushed = {}
        for version in reversed(self.store.versions(VersionState.CANARY)):
            if version.name not in changing:
                served = self.store.serves(version.parent) if version.parent else []
                pushed[version.name] = ALL if ALL in served or not served else served[0]
        return pushed

    def _expiring(self, now: float) -> dict[str, float]:
        """Return when the corpora of live versions expire that are to be renewed."""
        due = {}
        for cohort, name in self.store.live().items():
            times = expiry(self.store.folders(self.store.version(name)))
            if times is not None:
                made, expires = times
                if now >= made + self.policy.corpus.renew * (expires - made):
                    due[cohort] = expires
        return due

    def _note(self, decisions: Sequence[LoopDecision], seen: Sequence[SeenCohort]) -> None:
        """Note decisions and begin what they begin, in one transaction."""
        now, live = self.clock(), self.store.live()
        with self.store.database.transaction():
            self.journal.see(seen)
            self.journal.note(decisions, now)
            for decision in decisions:
                if decision.action.begins_change:
                    (cohort,) = decision.cohorts
                    replaces = live.get(cohort, live.get(ALL, ""))
                    origin = _origin(decision)
                    self.journal.begin(
                        cohort, origin, replaces, now, decision.version, decision.fallen
                    )

    def _forget(self) -> None:
        """Remove the answers in corpora that have expired or were given up, and those that were
        trained on, so that nobody keeps what has to be forgotten."""
        active, training = self.journal.active(), ChangeStage.TRAINING
        self._tools.trainer.tidy({c.version for c in active if c.stage is training})
        building = (training, ChangeStage.BUILDING)
        tidy_corpora(self.store.folder, {str(c.id) for c in active if c.stage in building})
        stopped = {c.version for c in self.journal.changes() if c.stage is ChangeStage.STOPPED}
        given = stopped & only_tried(self.journal)
        for version in self.store.versions(VersionState.RETIRED):
            if version.artefacts and self._is_past(version, given):
                self.store.discard(version.name)

    def _is_past(self, version: DrafterVersion, given: set[str]) -> bool:
        times = expiry(self.store.folders(version))
        return times is not None and (version.name in given or times[1] <= self.clock())


def rollback(
    store: DrafterStore, serving: ServedDrafters, author: Author, cohort: str = ALL
) -> StoreChange:
    """Bring back the version that a cohort had before, in the store and where it is served.

    Raises InvalidRequest where there is none, and ServingError; the store has changed before that,
    and a loop that runs, or another reconcile(), tells the server.
    """
    change = store.rollback(author, cohort)
    reconcile(serving, store)
    return change


def _origin(decision: LoopDecision) -> ChangeOrigin:
    """Return why a decision begins a change."""
    has_grown = decision.kind == DriftKind.MIX
    built = ChangeOrigin.GROWTH if has_grown else ChangeOrigin.DRIFT
    return ORIGINS.get(decision.action, built)
