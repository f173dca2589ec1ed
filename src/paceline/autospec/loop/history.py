"""What was done before, as decisions about drift need it: from services, changes and findings."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from paceline.autospec.drift import DriftKind, LedgerEntry, LedgerKind
from paceline.autospec.loop.journal import (
    ChangeOrigin,
    ChangeRecord,
    ChangeStage,
    LoopJournal,
    NotedDecision,
)
from paceline.autospec.store import ALL


def ledger_entries(journal: LoopJournal, cohorts: Collection[str]) -> list[LedgerEntry]:
    """Return the events of a store that concern these cohorts, the oldest first."""
    changes = journal.changes()
    entries = [
        *_swaps(journal, changes, cohorts),
        *(entry for change in changes for entry in _trainings(change)),
        *(entry for noted in journal.decisions() for entry in _findings(noted)),
    ]
    return sorted(entries, key=lambda entry: (entry.time, entry.kind))


def given_up(changes: Collection[ChangeRecord]) -> dict[str, float]:
    """Return when a corpus was last given up, by cohort."""
    ended: dict[str, float] = {}
    others = (ChangeOrigin.PUSHED, ChangeOrigin.WEIGHTS)
    for change in changes:
        stopped = change.stage is ChangeStage.STOPPED and change.origin not in others
        if stopped and change.ended is not None:
            ended[change.cohort] = max(change.ended, ended.get(change.cohort, 0.0))
    return ended


def only_tried(journal: LoopJournal) -> frozenset[str]:
    """Return the versions that changes were about and that never served. A version that was tried
    in vain may be tried again, and serve then."""
    served = {service["name"] for service in journal.services()}
    return frozenset(change.version for change in journal.changes()) - served


def _swaps(
    journal: LoopJournal, changes: Collection[ChangeRecord], cohorts: Collection[str]
) -> Iterator[LedgerEntry]:
    """Yield when cohorts got another drafter. A renewed corpus is none: the reference stays."""
    renewals = {c.version for c in changes if c.origin is ChangeOrigin.RENEWAL}
    services = journal.services()
    own = {service["cohort"] for service in services if service["ended"] is None} - {ALL}
    for service in services:
        if service["name"] in renewals:
            continue
        label = service["cohort"]
        served = frozenset({label} if label != ALL else {*cohorts} - own)
        if served:
            yield LedgerEntry(LedgerKind.SWAP, service["started"], served)


def _trainings(change: ChangeRecord) -> Iterator[LedgerEntry]:
    """Yield a change as a training. One that was given up before a job or a canary cost nothing, so
    it does not hold back the next attempt."""
    progress = change.progress
    tried = change.ended is None or progress.canary or change.stage is ChangeStage.LIVE
    tried = tried or progress.job is not None
    if change.origin in (ChangeOrigin.DRIFT, ChangeOrigin.WEIGHTS) and tried:
        served = frozenset({change.cohort})
        yield LedgerEntry(LedgerKind.TRAINING, change.created, served, change.ended)


def _findings(noted: NotedDecision) -> Iterator[LedgerEntry]:
    """Yield a step of a deployment that was found."""
    decision = noted.decision
    if decision.kind == DriftKind.DEPLOYMENT:
        served = frozenset(decision.cohorts)
        yield LedgerEntry(LedgerKind.FINDING, decision.start, served, noted.ended)
