"""The states of a drafter version, and the one table of allowed transitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from paceline.core import InvalidRequest


class VersionState(StrEnum):
    """The state of a drafter version.

    registered   it has a name, and something is making it
    trained      all its files are in the store, under their checksum
    scored       it was scored on captured traffic
    shadow       it is scored on live traffic, and drafts for nobody
    canary       it drafts for a share of the traffic
    live         it drafts for the cohorts that it serves
    retired      it drafts for nobody any more
    """

    REGISTERED = "registered"
    TRAINED = "trained"
    SCORED = "scored"
    SHADOW = "shadow"
    CANARY = "canary"
    LIVE = "live"
    RETIRED = "retired"


# What may follow a state; None: the version does not exist yet. A later state may be taken at once,
# because a person may know better than a test. `live` follows `live` where a version begins to
# serve another cohort, and `retired` only by a rollback.
TRANSITIONS: Mapping[VersionState | None, tuple[VersionState, ...]] = {
    None: (VersionState.REGISTERED, VersionState.TRAINED),
    VersionState.REGISTERED: (VersionState.TRAINED, VersionState.RETIRED),
    VersionState.TRAINED: (
        VersionState.SCORED,
        VersionState.SHADOW,
        VersionState.CANARY,
        VersionState.LIVE,
        VersionState.RETIRED,
    ),
    VersionState.SCORED: (
        VersionState.SHADOW,
        VersionState.CANARY,
        VersionState.LIVE,
        VersionState.RETIRED,
    ),
    VersionState.SHADOW: (VersionState.CANARY, VersionState.LIVE, VersionState.RETIRED),
    VersionState.CANARY: (VersionState.LIVE, VersionState.RETIRED),
    VersionState.LIVE: (VersionState.LIVE, VersionState.RETIRED),
    VersionState.RETIRED: (VersionState.LIVE,),
}
SERVING = (
    VersionState.SHADOW,
    VersionState.CANARY,
    VersionState.LIVE,
)  # states whose files somebody will load


def all_transitions() -> Iterator[tuple[VersionState | None, VersionState]]:
    """Yield every allowed transition: the state before and the state after."""
    for before, following in TRANSITIONS.items():
        yield from ((before, after) for after in following)


def next_state(name: str, state: VersionState) -> VersionState:
    """Return the state that a promotion without a stated goal leads to. Raises InvalidRequest."""
    following = TRANSITIONS[state]
    if state in (VersionState.REGISTERED, VersionState.RETIRED) or not following:
        raise InvalidRequest("name", name, f"a version to promote; {name} is {state}")
    return following[0]


def check_promotion(name: str, before: VersionState, after: VersionState) -> None:
    """Raise InvalidRequest where a version may not be promoted from `before` to `after`."""
    allowed = [state for state in TRANSITIONS[before] if state is not VersionState.RETIRED]
    if before in (VersionState.REGISTERED, VersionState.RETIRED):
        allowed = []  # their ways on are files, and a rollback
    if after not in allowed:
        raise InvalidRequest("to", str(after), _expected(name, before, allowed))


def _expected(name: str, before: VersionState, allowed: Sequence[VersionState]) -> str:
    if before is VersionState.RETIRED:
        return f"a version that is not retired; a rollback may make {name} live again"
    if before is VersionState.REGISTERED:
        return f"a version with files; {name} is registered, and something is making it"
    return f"{' or '.join(allowed)}; {name} is {before}"
