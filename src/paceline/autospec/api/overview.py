"""All that the page shows of a store and its traces, within bounds."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, get_args

import numpy as np

from paceline.autospec.api.answers import (
    By,
    CanaryArm,
    DecidingLoop,
    Goal,
    ShownChange,
    ShownDecision,
    ShownVersion,
    StoreOverview,
)
from paceline.autospec.api.cohorts import CohortBook
from paceline.autospec.api.curves import SPANS, CohortCurves, CurveSpan
from paceline.autospec.api.matrix import al_cells
from paceline.autospec.api.traced import TracedTraffic
from paceline.autospec.canary import CanaryState
from paceline.autospec.drift import Ledger
from paceline.autospec.loop.history import ledger_entries, only_tried
from paceline.autospec.loop.journal import ChangeRecord, LoopJournal, NotedDecision
from paceline.autospec.policy import DriftPolicy
from paceline.autospec.store import (
    TRANSITIONS,
    DrafterStore,
    DrafterVersion,
    VersionState,
    holder_of,
)
from paceline.autospec.sums import N, R, T

MOST_VERSIONS, MOST_CHANGES, MOST_DECISIONS = 60, 20, 40
MOST_COLUMNS = 12  # versions of the matrix
USUAL = DriftPolicy()
E = TypeVar("E", ChangeRecord, NotedDecision)


def overview(folder: Path, traffic: TracedTraffic, shown: TracedTraffic, by: By) -> StoreOverview:
    """Read a store and put its traffic beside it: by hour, and as the curves show it. Raises
    StoreError and InvalidRequest."""
    with DrafterStore(folder) as store:
        journal = LoopJournal(store)
        changes, more_changes = _bounded(journal.changes(), MOST_CHANGES)
        decisions, more_decisions = _bounded(journal.decisions(), MOST_DECISIONS)
        book = _book(store, journal, traffic, shown, SPANS[by])
        cohorts, more_cohorts = book.chosen()
        everything = sorted(store.versions(), key=lambda v: v.state is VersionState.RETIRED)
        versions = everything[:MOST_VERSIONS]
        columns = [version.name for version in versions[:MOST_COLUMNS]]
        parents = {version.name: version.parent for version in everything}
        return {
            "time": time.time(),
            "by": by,
            "loop": deciding_loop(store),
            "cohorts": [book.shown(cohort) for cohort in cohorts],
            "versions": [_version(store, version, parents, book.live) for version in versions],
            "matrix": [*al_cells(store.scores(), traffic.whole, columns, cohorts)],
            "changes": [_change(change) for change in changes],
            "decisions": [_decision(noted) for noted in decisions],
            "left_out": {
                "cohorts": more_cohorts,
                "versions": len(everything) - len(versions),
                "columns": len(everything) - len(columns),
                "changes": more_changes,
                "decisions": more_decisions,
            },
        }


def _book(
    store: DrafterStore,
    journal: LoopJournal,
    traffic: TracedTraffic,
    shown: TracedTraffic,
    span: CurveSpan,
) -> CohortBook:
    """Return what is known of cohorts. Their curves leave out what was only tried, as the loop
    does: it says nothing about the drafter that is live."""
    tried = only_tried(journal)
    cohorts = traffic.over.by_cohort(tried).cohorts
    ledger = Ledger(tuple(ledger_entries(journal, cohorts)))
    curves = CohortCurves.of(traffic, shown, tried, ledger, span, USUAL)
    return CohortBook.of(store, journal, curves)


def _bounded(entries: Sequence[E], most: int) -> tuple[list[E], int]:
    """Return the entries that last, then the latest of those that have ended, at most so many in
    all; and how many more there are."""
    ordered = sorted(entries, key=lambda entry: entry.ended is not None)
    return ordered[:most], max(0, len(ordered) - most)


def deciding_loop(store: DrafterStore) -> DecidingLoop | None:
    """Return the process that decides for a store; None: nobody does."""
    holder = holder_of(store)
    if holder is None:
        return None
    return {"purpose": holder.purpose, "host": holder.host, "since": holder.since}


def _version(
    store: DrafterStore,
    version: DrafterVersion,
    parents: Mapping[str, str | None],
    live: Mapping[str, str],
) -> ShownVersion:
    lineage, parent = list[str](), version.parent
    while parent is not None:
        lineage.append(parent)
        parent = parents.get(parent)
    last = store.history(version.name, 1)[-1]
    return {
        "name": version.name,
        "state": version.state.value,
        "serves": [cohort for cohort, name in live.items() if name == version.name],
        "kind": version.kind,
        "spec": version.spec,
        "checksum": version.checksum,
        "target": version.target.name,
        "lineage": lineage,
        "created": version.created,
        "note": version.note,
        "goals": _goals(version.state),
        "changed": last.time,
        "actor": last.actor,
        "reason": last.reason,
    }


def _goals(state: VersionState) -> list[Goal]:
    """Return the states that a promotion may lead to."""
    if state in (VersionState.REGISTERED, VersionState.RETIRED):
        return []
    goals = [after.value for after in TRANSITIONS[state] if after is not VersionState.RETIRED]
    return [goal for goal in get_args(Goal) if goal in goals]


def _change(change: ChangeRecord) -> ShownChange:
    canary = change.progress.canary
    return {
        "id": change.id,
        "cohort": change.cohort,
        "origin": change.origin.value,
        "version": change.version,
        "replaces": change.replaces,
        "stage": change.stage.value,
        "percent": change.percent,
        "score": change.progress.score,
        "hold": change.progress.hold,
        "new": None if canary is None else _arm(canary, "canary"),
        "old": None if canary is None else _arm(canary, "live"),
        "created": change.created,
        "changed": change.changed,
        "ended": change.ended,
        "reason": change.reason,
    }


def _arm(canary: CanaryState, name: str) -> CanaryArm:
    sums = np.sum([getattr(step, name).of("tokens_per_round") for step in canary.steps], axis=0)
    rounds = float(sums[R])
    return {
        "requests": int(sums[N]),
        "tokens_per_round": float(sums[T]) / rounds if rounds else None,
    }


def _decision(noted: NotedDecision) -> ShownDecision:
    decision = noted.decision
    return {
        "id": noted.id,
        "kind": decision.kind,
        "action": str(decision.action),
        "cohorts": [*decision.cohorts],
        "start": decision.start,
        "gain": decision.gain,
        "cost": decision.cost,
        "why": [*decision.why],
        "why_not": [*decision.why_not],
        "noted": noted.noted,
        "seen": noted.seen,
        "ended": noted.ended,
    }
