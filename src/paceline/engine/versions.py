"""Drafters of a running engine: loaded beside the others, routed to, and retired.

A drafter is built on a thread of its own. The engine's thread only takes it in, or takes it out,
between two steps. The event loop decides which requests get it: admission changes after a drafter
has joined, and before one leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeVar

from paceline.core import InvalidRequest
from paceline.drafters.spec import NAME
from paceline.engine.engine import Engine
from paceline.engine.newcomers import DrafterBytes
from paceline.engine.routes import Routes
from paceline.engine.smallest_first import SmallestFirst

log = logging.getLogger(__name__)
T = TypeVar("T")
RESERVED = ("routes", "none")  # no names for drafters: they mean something else where names stand


class DrafterState(StrEnum):
    LOADING = "loading"
    LIVE = "live"
    RETIRING = "retiring"


class UnknownDrafter(InvalidRequest):
    """No drafter has this name."""


class DrafterInUse(InvalidRequest):
    """What is asked contradicts what the drafter is used for at the moment."""


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """A drafter by name, with the spec it was named by. `version` tells one set of weights from the
    next, and is None until it is loaded."""

    name: str
    spec: str
    state: DrafterState
    version: str | None = None
    memory: DrafterBytes = field(default_factory=lambda: DrafterBytes(0))


@dataclass(slots=True)
class LoadCounts:
    """Counts drafters that were loaded since the start, the seconds that took, and failures."""

    loaded: int = 0
    failed: int = 0
    seconds: float = 0.0


class EngineThread(Protocol):
    """Runs work on the engine's thread between two steps. Raises EngineDead."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]: ...


class Versions:
    """Loads, routes and retires the drafters of an engine. Belongs to the event loop."""

    def __init__(
        self, engine: Engine, between_steps: EngineThread, used: Callable[[], Counter[str | None]]
    ) -> None:
        """`used` counts the streams of each drafter."""
        self._engine, self._between_steps, self.used = engine, between_steps, used
        self._drafters = {
            name: LoadedDrafter(
                name,
                engine.lineup.specs[name],
                DrafterState.LIVE,
                drafter.version,
                DrafterBytes.of(drafter, engine.plan),
            )
            for name, drafter in engine.drafters.items()
        }
        self._worker = SmallestFirst("paceline-drafters")
        self._turn = asyncio.Lock()  # one drafter loads at a time
        self._loading: set[asyncio.Task[LoadedDrafter]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.counts = LoadCounts()

    @property
    def routes(self) -> Routes:
        return self._engine.admission.routes

    def list(self) -> list[LoadedDrafter]:
        return list(self._drafters.values())

    async def load(self, name: str, spec: str) -> LoadedDrafter:
        """Load a drafter beside the others and return it when requests may name it.

        Raises InvalidRequest for a name or a spec that is wrong, DrafterInUse for a name that is
        taken, NoRoom, LoadFailed and EngineDead; then nothing of the drafter is left.
        """
        if not NAME.fullmatch(name) or name in RESERVED:
            expected = "letters, digits, '.', '_' and '-', but not " + " or ".join(RESERVED)
            raise InvalidRequest("name", name, expected)
        if (taken := self._drafters.get(name)) is not None:
            raise DrafterInUse("name", name, f"a name that no drafter has; one is {taken.state}")
        self._drafters[name] = LoadedDrafter(name, spec, DrafterState.LOADING)
        loading = asyncio.create_task(self._load(name, spec))
        self._loading.add(loading)
        loading.add_done_callback(self._loading.discard)
        return await asyncio.shield(loading)  # a caller that leaves does not leave half a drafter

    async def _load(self, name: str, spec: str) -> LoadedDrafter:
        start, counts = time.monotonic(), self.counts
        log.info("loading drafter %s: %s", name, spec)
        try:
            async with self._turn:
                build = partial(self._engine.builder.build, name, spec, self._room())
                drafter = await asyncio.wrap_future(self._worker.submit(0, build))
                await self._between_steps(partial(self._engine.lineup.join, drafter, spec))
        except BaseException:
            del self._drafters[name]
            counts.failed += 1
            raise
        admission = self._engine.admission
        offered = {**admission.drafters, name: drafter}
        self._engine.admit_by(replace(admission, drafters=offered))
        memory = DrafterBytes.of(drafter, self._engine.plan)
        loaded = LoadedDrafter(name, spec, DrafterState.LIVE, drafter.version, memory)
        self._drafters[name] = loaded
        seconds = time.monotonic() - start
        counts.loaded, counts.seconds = counts.loaded + 1, counts.seconds + seconds
        log.info("drafter %s is loaded after %.1f s, version %s", name, seconds, drafter.version)
        return loaded

    def _room(self) -> int:
        """Return the bytes that another drafter may take."""
        used = sum(drafter.memory.total for drafter in self._drafters.values())
        return self._engine.plan.drafter_bytes - used

    def route(self, routes: Routes) -> None:
        """Serve new requests by these routes. Raises InvalidRequest for a drafter that is not
        live."""
        admission = self._engine.admission
        routes.check(admission.drafters)
        self._engine.admit_by(replace(admission, routes=routes))

    async def retire(self, name: str) -> LoadedDrafter | None:
        """Give a drafter no new request and let it leave when its last one has ended. Return None
        where it has left at once.

        Raises UnknownDrafter, DrafterInUse for a drafter that is routed to or still loads, and
        EngineDead.
        """
        drafter = self._drafters.get(name)
        if drafter is None:
            raise UnknownDrafter("name", name, f"one of: {', '.join(self._drafters) or 'none'}")
        if drafter.state is DrafterState.LOADING:
            raise DrafterInUse("name", name, "a drafter that is loaded; this one still loads")
        if drafter.state is DrafterState.LIVE:
            if (field := self.routes.drafters.get(name)) is not None:
                expected = f"a drafter that no route names; {field} does: change the routes first"
                raise DrafterInUse("name", name, expected)
            drafter = self._drafters[name] = replace(drafter, state=DrafterState.RETIRING)
            admission = self._engine.admission
            left = {key: each for key, each in admission.drafters.items() if key != name}
            self._engine.admit_by(replace(admission, drafters=left))
            self._loop = asyncio.get_running_loop()
            await self._between_steps(partial(self._leave, name))
        return self._drafters.get(name)

    # -- on the engine's thread, between two steps ------------------------------------------------

    def _leave(self, name: str) -> None:
        self._engine.lineup.retire(name)
        self.note_left()

    def note_left(self) -> None:
        """Take out the retiring drafters that have no request left."""
        left = self._engine.lineup.leave() if self._engine.lineup.retiring else []
        while left:
            held = [left.pop()]
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody lists drafters
                self._loop.call_soon_threadsafe(self._drop, held[0].name)
            # The last reference goes on the worker: to unmap a drafter's memory takes time.
            self._worker.submit(0, held.clear)

    def _drop(self, name: str) -> None:
        del self._drafters[name]
        log.info("drafter %s has left", name)
