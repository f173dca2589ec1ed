"""Promotions and rollbacks: the same changes of the store as `paceline drafters` makes."""

from __future__ import annotations

import logging
from pathlib import Path

from paceline.autospec.api.answers import DrafterChange, PromotionBody, RollbackBody
from paceline.autospec.api.overview import deciding_loop
from paceline.autospec.store import Author, DrafterStore, StoreChange, VersionState
from paceline.core import InvalidRequest

log = logging.getLogger(__name__)


def promote(folder: Path, body: PromotionBody, actor: str) -> DrafterChange:
    """Take a version to a later state. Raises InvalidRequest and StoreError."""
    goal = None if body.to is None else VersionState(body.to)
    with DrafterStore(folder) as store:
        change = store.promote(body.name, Author(actor, body.reason), goal, cohort=body.cohort)
        state = store.version(body.name).state
        log.info("%s: %s is %s%s", actor, body.name, state, _for(change))
        return _told(store, change)


def rollback(folder: Path, body: RollbackBody, actor: str) -> DrafterChange:
    """Bring back the version that a cohort had before. Raises InvalidRequest and StoreError."""
    with DrafterStore(folder) as store:
        back = store.previous(body.cohort)
        if body.name is not None and back is not None and back.name != body.name:
            expected = f"{back.name}, which a rollback would bring back now"
            raise InvalidRequest("name", body.name, expected)
        change = store.rollback(Author(actor, body.reason), body.cohort)
        live = change.live or "no version of its own"
        log.info("%s: %s is live again%s", actor, live, _for(change))
        return _told(store, change)


def _for(change: StoreChange) -> str:
    return f" for {change.cohort}" if change.cohort else ""


def _told(store: DrafterStore, change: StoreChange) -> DrafterChange:
    return {
        "cohort": change.cohort,
        "live": change.live,
        "retired": [*change.retired],
        "loop": deciding_loop(store),
    }
