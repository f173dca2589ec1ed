"""Loads that take minutes do not hold up the loop: it goes on watching canaries meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass

from paceline.autospec.server_client import DrafterRoutes
from paceline.autospec.serving import LOADING, ServedDrafters, ServedVersion

PATIENCE = 10.0  # seconds that load() waits: most drafters are there by then


@dataclass(frozen=True, slots=True)
class PendingLoad:
    """A load that was begun and whose end nobody was told yet."""

    spec: str
    ended: Future[None]


class BackgroundLoads:
    """`serving`, with loads on threads of their own. They end with the process; what serves goes on
    loading, and whoever steers it next finds that."""

    def __init__(self, serving: ServedDrafters, patience: float = PATIENCE) -> None:
        self._serving, self._patience = serving, patience
        self._pending: dict[str, PendingLoad] = {}

    def takes_corpora(self) -> bool:
        """Return whether a drafter there can look answers up in a corpus."""
        return self._serving.takes_corpora()

    def loaded(self) -> Mapping[str, ServedVersion]:
        """Return what is loaded, and what loads."""
        there = dict(self._serving.loaded())
        for name, load in [*self._pending.items()]:
            if not load.ended.done():
                there[name] = ServedVersion(name, load.spec, LOADING, 0)
            elif load.ended.exception() is None:  # it may leave, and be loaded anew
                del self._pending[name]
        return there

    def load(self, name: str, spec: str) -> None:
        """Begin to load a version, and return after a while whether or not it is there. What went
        wrong after that is raised when it is asked for again."""
        load = self._pending.get(name)
        if load is None or load.spec != spec:
            load = self._pending[name] = PendingLoad(spec, Future())
            work = (name, spec, load.ended)
            threading.Thread(target=self._run, args=work, name=f"load-{name}", daemon=True).start()
        if wait([load.ended], self._patience).done:
            del self._pending[name]
            load.ended.result()

    def route(self, routes: DrafterRoutes) -> None:
        """Share the requests out."""
        self._serving.route(routes)

    def unload(self, name: str) -> None:
        """Have a version leave."""
        self._serving.unload(name)

    def _run(self, name: str, spec: str, ended: Future[None]) -> None:
        try:
            self._serving.load(name, spec)
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)
