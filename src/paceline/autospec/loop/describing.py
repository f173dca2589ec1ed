"""What a store says of the loop: where each cohort stands, and what was decided about it."""

from __future__ import annotations

from typing import Any

from paceline.autospec.loop.journal import ChangeRecord, LoopJournal, NotedDecision
from paceline.autospec.store import ALL, DrafterStore, holder_of
from paceline.core import InvalidRequest
from paceline.core.names import guesses

Json = dict[str, Any]


def status_json(store: DrafterStore) -> Json:
    """Return where each cohort stands: its AL and what is usual, by the last turn of the loop; the
    version that drafts for it; the change under way. And who runs the loop, and what it decided."""
    journal, live = LoopJournal(store), store.live()
    seen = {cohort.cohort: cohort for cohort in journal.seen()}
    changes = {change.cohort: change for change in journal.active()}
    holder = holder_of(store)
    cohorts = []
    for label in sorted({*seen, *live, *changes}):
        facts = seen[label].as_json() if label in seen else {"cohort": label}
        facts.pop("time", None)
        change = changes.get(label)
        cohorts.append(
            {
                **facts,
                "live": live.get(label, live.get(ALL)),
                "has_own": label in live,
                "under_way": None if change is None else change.as_json(),
            }
        )
    return {
        "store": str(store.folder),
        "runs": None if holder is None else str(holder),
        "looked": max((cohort.time for cohort in seen.values()), default=None),
        "cohorts": cohorts,
        "decisions": [noted.as_json() for noted in journal.decisions(lasting=True)],
    }


def explain_json(store: DrafterStore, cohort: str | None, limit: int) -> Json:
    """Return what was decided about a cohort, or about all, and what came of it: decisions that
    last, the latest `limit` that have ended, and the latest changes, the newest first.

    Raises InvalidRequest (field `cohort`) for one that the store has never heard of.
    """
    journal = LoopJournal(store)
    decisions, changes = journal.decisions(), journal.changes()
    if cohort is not None:
        _check_known(store, journal, decisions, changes, cohort)
        decisions = [noted for noted in decisions if _concerns(noted, cohort)]
        changes = [change for change in changes if change.cohort == cohort]
    return {
        "cohort": cohort,
        "decisions": [noted.as_json() for noted in decisions if noted.ended is None],
        "changes": [change.as_json() for change in changes[:limit]],
        "earlier": [noted.as_json() for noted in decisions if noted.ended is not None][:limit],
    }


def _concerns(noted: NotedDecision, cohort: str) -> bool:
    """Return whether a decision is about a cohort; one without cohorts is about all."""
    cohorts = noted.decision.cohorts
    return not cohorts or cohort in cohorts


def _check_known(
    store: DrafterStore,
    journal: LoopJournal,
    decisions: list[NotedDecision],
    changes: list[ChangeRecord],
    cohort: str,
) -> None:
    known = {
        ALL,
        *store.live(),
        *(seen.cohort for seen in journal.seen()),
        *(change.cohort for change in changes),
        *(label for noted in decisions for label in noted.decision.cohorts),
    }
    if cohort in known:
        return
    names = sorted(known - {ALL})
    likely = guesses(cohort, {name: name for name in names}) or names[:3]
    such = f", such as {', '.join(likely)}" if likely else ""
    raise InvalidRequest("cohort", cohort, f"a cohort that the store knows{such}")
