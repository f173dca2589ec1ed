"""Serving, as autospec steers it: versions are loaded, get shares of the requests, and leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from paceline.autospec.server_client import DrafterClient, DrafterRoutes, ServerRefused
from paceline.core import PacelineError

READY = "live"  # the state of a version that requests can be routed to
LOADING, LEAVING = "loading", "retiring"
FAILED = "failed"  # the state of a replica whose process has ended by itself
# statuses of a server that has looked at a drafter and cannot load it
LOOKED_AT = (400, 409, 413, 500)
FULL = 409  # among them: there is no room for it beside the others


class ServingError(PacelineError):
    """A server was not reached, or did not do what it was asked. What it serves goes on."""


class DrafterRefused(ServingError):
    """A server looked at a drafter and cannot load it, so that asking again is no help."""


class ServingFull(DrafterRefused):
    """A server has no room for a drafter beside the others: it may have when one of them leaves."""


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A drafter that a server has. `state` is "loading", "live", "retiring" or "failed"; `requests`
    is how many it drafts for now."""

    name: str
    spec: str
    state: str
    requests: int

    @property
    def is_ready(self) -> bool:
        return self.state == READY


class ServedDrafters(Protocol):
    """A server, or several that are steered as one. Every method raises ServingError."""

    def takes_corpora(self) -> bool:
        """Return whether a drafter here can look answers up in a corpus."""
        ...

    def loaded(self) -> Mapping[str, ServedVersion]:
        """Return what is loaded, by name."""
        ...

    def load(self, name: str, spec: str) -> None:
        """Load a version beside the others; return when requests can be routed to it. Raises
        DrafterRefused where it cannot be loaded, and ServingFull where others take the room."""
        ...

    def route(self, routes: DrafterRoutes) -> None:
        """Share the requests out. A default of None leaves the server's own."""
        ...

    def unload(self, name: str) -> None:
        """Give a version no more requests; it leaves when its last one has ended."""
        ...


@dataclass(frozen=True, slots=True)
class PacelineServing:
    """Our own server, over its API for drafters."""

    client: DrafterClient

    def takes_corpora(self) -> bool:
        """Return whether a drafter here can look answers up in a corpus."""
        with _worded():
            return self.client.drafters().takes_corpora

    def loaded(self) -> Mapping[str, ServedVersion]:
        """Return what the server has loaded."""
        with _worded():
            there = self.client.drafters().drafters
        return {
            # a server that was started with a drafter shows its name in the spec
            name: ServedVersion(name, one.spec.removeprefix(f"{name}="), one.state, one.requests)
            for name, one in there.items()
        }

    def load(self, name: str, spec: str) -> None:
        """Load a version beside the others."""
        try:
            self.client.load(name, spec)
        except ServerRefused as error:
            refused = ServingFull if error.status == FULL else DrafterRefused
            kind = refused if error.status in LOOKED_AT else ServingError
            raise kind(str(error)) from error

    def route(self, routes: DrafterRoutes) -> None:
        """Set the server's routes, if they are others."""
        with _worded():
            present = self.client.drafters().routes
            if routes.default is None:
                routes = replace(routes, default=present.default)
            if routes != present:
                self.client.set_routes(routes)

    def unload(self, name: str) -> None:
        """Have a version leave. The server's default stays, since it has no other."""
        with _worded():
            if self.client.drafters().routes.default != name:
                self.client.retire(name)


class PlannedServing:
    """Stands in for a server and only notes, in words, what would be done to it: `steps`."""

    def __init__(self, client: DrafterClient) -> None:
        with _worded():
            there = client.drafters()
        self._present, self._takes_corpora = there.routes, there.takes_corpora
        self._loaded = dict(PacelineServing(client).loaded())
        self.steps: list[str] = []

    def takes_corpora(self) -> bool:
        """Return whether a drafter there can look answers up in a corpus."""
        return self._takes_corpora

    def loaded(self) -> Mapping[str, ServedVersion]:
        """Return what would be loaded."""
        return self._loaded

    def load(self, name: str, spec: str) -> None:
        """Note that a version would be loaded."""
        self.steps.append(f"load {name} ({spec})")
        self._loaded[name] = ServedVersion(name, spec, READY, 0)

    def route(self, routes: DrafterRoutes) -> None:
        """Note routes that the server does not have."""
        if routes.default is None:
            routes = replace(routes, default=self._present.default)
        if routes != self._present:
            self.steps.append(f"route {routes.in_words()}")
            self._present = routes

    def unload(self, name: str) -> None:
        """Note that a version would leave."""
        if name != self._present.default:
            self.steps.append(f"let {name} leave")
            del self._loaded[name]


@contextmanager
def _worded() -> Iterator[None]:
    try:
        yield
    except ServerRefused as error:
        raise ServingError(str(error)) from error
