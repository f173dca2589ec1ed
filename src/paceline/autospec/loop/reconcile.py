"""What servers should have, by the store alone, and how they get it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from paceline.autospec.canary import canary_rule
from paceline.autospec.live_server import match_of
from paceline.autospec.loop.journal import ChangeRecord, ChangeStage, LoopJournal
from paceline.autospec.loop.routed import RoutedCohort, routed_cohorts
from paceline.autospec.server_client import WHOLE, DrafterRoutes, RouteRule
from paceline.autospec.serving import FAILED, LEAVING, DrafterRefused, ServedDrafters, ServingFull
from paceline.autospec.store import ALL, ArtefactDamaged, DrafterStore

log = logging.getLogger(__name__)
SALT = "paceline-autospec"  # constant: a session keeps its place as the canary's share grows
LOADED_STAGES = (ChangeStage.LOADING, ChangeStage.CANARY)


@dataclass(frozen=True, slots=True)
class WantedServing:
    """What a server should have.

    versions  what must be loaded: the spec of each, by name
    tried     those of them that are being tried, and so leave or make another one leave
    kept      what may stay while there is room: the versions that a rollback would bring back
    known     all versions of the store; a drafter with another name is somebody else's
    routes    who drafts for whom
    """

    versions: Mapping[str, str]
    tried: frozenset[str]
    kept: frozenset[str]
    known: frozenset[str]
    routes: DrafterRoutes


@dataclass(frozen=True, slots=True)
class NotLoaded:
    """Why versions are not loaded, by name: those that the server cannot load, and those that wait
    for room."""

    refused: Mapping[str, str] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)


def wanted(store: DrafterStore) -> WantedServing:
    """Return what the store says that a server should have."""
    live, changes = store.live(), LoopJournal(store).active()
    trying = [change for change in changes if change.stage in LOADED_STAGES]
    tried = frozenset(change.version for change in trying)
    previous = [store.previous(cohort) for cohort in live]
    return WantedServing(
        versions={
            name: store.spec(store.version(name)) for name in sorted(tried.union(live.values()))
        },
        tried=tried,
        kept=frozenset(version.name for version in previous if version is not None),
        known=frozenset(version.name for version in store.versions()),
        routes=_routes(live, trying, routed_cohorts(store)),
    )


def _routes(
    live: Mapping[str, str], trying: Collection[ChangeRecord], routed: Collection[RoutedCohort]
) -> DrafterRoutes:
    """Return a rule for each cohort that has a drafter or a canary of its own, or is shared out; a
    canary for all other requests comes last."""
    canaries = {change.cohort: change for change in trying if change.percent > 0}
    shared = {each.cohort: each.rule() for each in routed if each.cohort not in canaries}
    rules = []
    for cohort in (*sorted({*live, *canaries, *shared} - {ALL}), ALL):
        match, change = match_of(cohort), canaries.get(cohort)
        if change is not None:
            rule = canary_rule(match, change.replaces, change.version, change.percent)
            rules.append(RouteRule(rule["match"], rule["shares"]))
        elif cohort in shared:
            rules.append(shared[cohort])
        elif cohort != ALL:
            rules.append(RouteRule(match, {live[cohort]: WHOLE}))
    return DrafterRoutes(live.get(ALL), tuple(rules), SALT)


def reconcile(serving: ServedDrafters, store: DrafterStore) -> NotLoaded:
    """Have a server do what the store says: load what is missing, share the requests out, and let
    leave what nobody wants. It may be repeated and broken off at will.

    Return what is not loaded; requests go past it. Raises ServingError.
    """
    aim = wanted(store)
    refusals, crowded = _load_missing(serving, store, aim)
    before = serving.loaded()
    ready = {name for name, there in before.items() if there.is_ready} - refusals.keys()
    serving.route(_over(aim.routes, ready))
    unwanted = (ready & aim.known) - aim.versions.keys()
    for name in sorted(unwanted if crowded else unwanted - aim.kept):
        serving.unload(name)
    if before.keys() & (aim.tried - crowded.keys()) or _makes_room(serving, before):
        return NotLoaded(refusals, crowded)
    return NotLoaded(refusals | crowded)


def _load_missing(
    serving: ServedDrafters, store: DrafterStore, aim: WantedServing
) -> tuple[dict[str, str], dict[str, str]]:
    """Load what is missing. Return why versions cannot be loaded, and for which others there is no
    room."""
    refusals: dict[str, str] = {}
    crowded: dict[str, str] = {}
    there = serving.loaded()
    for name, spec in aim.versions.items():
        present = there.get(name)
        if present is not None and present.spec != spec:
            refusals[name] = f"the server has another drafter {name}: {present.spec}"
        elif present is None or present.state == FAILED:
            try:
                store.check_files(store.version(name))
                serving.load(name, spec)
            except ServingFull as error:
                crowded[name] = str(error)
            except (DrafterRefused, ArtefactDamaged) as error:
                log.error("%s cannot be loaded: %s", name, error)
                refusals[name] = str(error)
    return refusals, crowded


def _makes_room(serving: ServedDrafters, before: Collection[str]) -> bool:
    """Return whether a drafter has left since, or is about to."""
    there = serving.loaded()
    leaving = any(each.state == LEAVING for each in there.values())
    return leaving or not there.keys() >= set(before)


def _over(routes: DrafterRoutes, ready: Collection[str]) -> DrafterRoutes:
    """Return the routes with those drafters alone that requests can be routed to."""
    named = {name for rule in routes.cohorts for name in rule.shares}
    for name in named - set(ready):
        routes = routes.without(name)
    return routes if routes.default in ready else replace(routes, default=None)
