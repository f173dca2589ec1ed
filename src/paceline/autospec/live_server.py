"""Tell a running server what the store of drafters says: load, route and retire its versions.

Every step may be repeated: what the server has done already is left as it is. So a command that
broke off on the way is given once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from paceline.autospec.server_client import DrafterClient, DrafterRoutes, ServerRefused
from paceline.autospec.store import ALL, DrafterStore, DrafterVersion, VersionState
from paceline.core import InvalidRequest
from paceline.core.cohorts import Cohort

LOADED = ("live", "loading")  # states of a server's drafter that will serve


def match_of(cohort: str) -> Mapping[str, str]:
    """Return what a rule of the routes matches for a cohort's label; {} for all requests."""
    return {} if cohort == ALL else asdict(Cohort.parse(cohort))


def bring(client: DrafterClient, store: DrafterStore, version: DrafterVersion) -> None:
    """Load a version into a server, unless it is there, after its files were checked.

    Raises InvalidRequest where the server has another drafter of this name.
    """
    spec = store.spec(version)
    there = client.drafters().drafters.get(version.name)
    if there is not None and there.state in LOADED:
        loaded = there.spec.removeprefix(f"{version.name}=")  # as a server was started with it
        if loaded != spec:
            expected = f"a server whose {version.name} is {spec}; it has {loaded}"
            raise InvalidRequest("server", client.address.shown, expected)
        return
    store.check_files(version)
    client.load(version.name, spec)


def route(client: DrafterClient, cohort: str, name: str | None) -> None:
    """Give all requests of a cohort to a drafter; None takes away the cohort's own rule."""
    routes = client.drafters().routes
    match = match_of(cohort)
    wanted = routes.without_cohort(match) if name is None else routes.serving(name, match)
    _set(client, routes, wanted)


def dismiss_retired(client: DrafterClient, store: DrafterStore) -> list[str]:
    """Take the drafters that the store has retired out of a server's routes, and have them leave.
    Return those that still draft for requests. The server's default stays: it has no other."""
    waiting = []
    retired = {version.name for version in store.versions(VersionState.RETIRED)}
    for name in client.drafters().drafters.keys() & retired:
        routes = client.drafters().routes
        if name == routes.default:
            continue
        _set(client, routes, routes.without(name))
        if not client.retire(name):
            waiting.append(name)
    return sorted(waiting)


def check_not_default(client: DrafterClient, name: str) -> None:
    """Raise ServerRefused where a drafter is the one that a server gives to all other requests."""
    if client.drafters().routes.default == name:
        raise ServerRefused(
            f"{name} is the default of the server at {client.address.shown}: promote another "
            "version for all requests first"
        )


def _set(client: DrafterClient, before: DrafterRoutes, after: DrafterRoutes) -> None:
    if after != before:
        client.set_routes(after)
