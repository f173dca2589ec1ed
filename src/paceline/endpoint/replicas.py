"""Replicas behind Envoy: a drafter is replaced by a new replica, on any engine.

    with DrafterReplicas(folder, endpoint) as replicas:
        replicas.load("app-3", "/drafters/app-3")                 # returns when it is ready
        replicas.route(DrafterRoutes("app-3"))                    # returns when Envoy does it
        replicas.unload("app-2")                                  # ends when nobody uses it

They are `ServedDrafters` of autospec. What is to run stands in `folder`, and the processes outlive
the controller: the next one finds them again. A thread brings what runs to what is to run, step by
step; every step can be repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from paceline.autospec.server_client import DrafterRoutes
from paceline.autospec.serving import FAILED, LEAVING, DrafterRefused, ServedVersion
from paceline.core import InvalidRequest, PacelineError
from paceline.endpoint.description import NAME, NAME_WORDS, ManagedEndpoint, check_routes
from paceline.endpoint.envoy.taps import SOCKET
from paceline.endpoint.errors import EndpointError
from paceline.endpoint.keeper import ReplicaKeeper
from paceline.endpoint.state import (
    ControllerLock,
    EndpointEvent,
    EndpointState,
    EventLog,
    ReplicaPhase,
    ReplicaRecord,
)
from paceline.engine.routes import Routes
from paceline.engines import KINDS

if TYPE_CHECKING:
    from paceline.dataset.traces.writer import TraceCounts
    from paceline.endpoint.taps import TapServer

STEP_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ServedReplica(ServedVersion):
    """A drafter that is served by a replica of its own; `pid` is None until that is live."""

    url: str
    pid: int | None

    def as_failed(self) -> ServedReplica:
        """Return the replica as one whose process has ended."""
        return replace(self, state=FAILED, pid=None)


def served_replica(name: str, record: ReplicaRecord, requests: int) -> ServedReplica:
    """Return the replica of a record, which answers so many requests now."""
    state = LEAVING if record.phase == "stopping" else record.phase
    return ServedReplica(name, record.spec, state, requests, record.url, record.pid)


class DrafterReplicas:
    """The replicas of one endpoint, and Envoy before them. One controller at a time.

    Raises InvalidRequest for an endpoint that cannot be, and EndpointError where another controller
    has the folder or Envoy does not start. `on_event` gets every event, in another thread.
    """

    def __init__(
        self,
        folder: Path,
        endpoint: ManagedEndpoint,
        on_event: Callable[[EndpointEvent], None] | None = None,
    ) -> None:
        self.folder, self.endpoint = folder, endpoint
        self._controller = ControllerLock(folder)
        try:
            self._events = EventLog(folder, on_event)
            self._keeper = ReplicaKeeper(folder, endpoint, self._events)
            self._taps = self._open_taps()
            self._ended, self._told = threading.Event(), ""
            started = self._keeper.gateway.open(self._keeper.description())
            self._events.tell("envoy", None, "Envoy is started" if started else "Envoy is found")
            self._step()  # what has ended since is known from here on
        except BaseException:
            self._controller.free()
            raise
        self._thread = threading.Thread(target=self._run, name="replicas", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Return where requests go."""
        return f"http://{self.endpoint.listen}"

    @property
    def routes(self) -> DrafterRoutes:
        """Return who gets which drafter; of a new endpoint nobody gets any."""
        routes = self._keeper.state.routes
        return DrafterRoutes() if routes is None else DrafterRoutes.of(routes.model_dump())

    @property
    def traced(self) -> TraceCounts | None:
        """Return how many answers this controller has traced; None without `traces`."""
        return None if self._taps is None else self._taps.counts

    @property
    def events(self) -> list[EndpointEvent]:
        """Return the latest events of this controller."""
        return list(self._events.latest)

    def takes_corpora(self) -> bool:
        """Return whether a drafter of this engine can look answers up in a corpus."""
        return KINDS[self.endpoint.engine].traits.takes_corpora

    def loaded(self) -> Mapping[str, ServedReplica]:
        """Return the replicas by the name of their drafter."""
        active = self._active_requests()
        replicas = self._keeper.state.replicas
        return {
            name: served_replica(name, record, active.get(record.port, 0))
            for name, record in replicas.items()
        }

    def answer_counts(self) -> dict[str, dict[str, int]]:
        """Return how each drafter's requests have ended, by class of their status and `broken`.
        Raises EndpointError."""
        return self._keeper.gateway.answer_counts()

    def load(self, name: str, spec: str) -> None:
        """Start a replica with the drafter `spec`; return when it can be routed to.

        A replica of this name and spec that is there already, live or loading, is not started
        twice; one that has failed is started again. Raises DrafterRefused for what cannot be
        started here, with the end of its log where it does not come up, and ServingFull; nothing
        else is harmed by it.
        """
        keeper = self._keeper
        with keeper.changed:
            record = keeper.state.replicas.get(name)
            if record is None or record.phase == "failed":
                with worded(DrafterRefused):
                    self._admit(name, spec)
            elif record.spec != spec or record.phase not in ("loading", "live"):
                expected = f"a name that is not taken; {record.spec} has it ({record.phase})"
                raise DrafterRefused(str(InvalidRequest("name", name, expected)))
            while (phase := self._phase(name)) == "loading":
                keeper.changed.wait(STEP_SECONDS)
                self._check_open()
            if phase != "live":
                reason = keeper.problems.pop(name, "it was unloaded meanwhile")
                raise DrafterRefused(f"the replica {name} did not come up: {reason}")

    def route(self, routes: DrafterRoutes) -> None:
        """Send requests by other routes; return when Envoy does so. Without a default, that of the
        present routes stays. Raises EndpointError for routes that name what is not live, or that
        Envoy cannot follow."""
        with self._keeper.changed, worded(EndpointError):
            if routes.default is None:
                routes = replace(routes, default=self.routes.default)
            if routes.default is None and not routes.cohorts:
                return  # of a new endpoint: nobody is served yet
            replicas = self._keeper.state.replicas
            live = [name for name, record in replicas.items() if record.phase == "live"]
            wanted = Routes.read(routes.as_json())
            check_routes(wanted, live, self.endpoint.model)
            if wanted != self._keeper.state.routes:
                self._reroute(wanted)

    def rollback(self) -> DrafterRoutes:
        """Send requests as before the latest change of routes; return those routes. Raises
        EndpointError where there was none, or a replica of it is gone."""
        with self._keeper.changed:
            routes = self._keeper.state.previous
            if routes is None:
                raise EndpointError("there are no earlier routes to go back to")
            gone = [name for name in routes.drafters if self._phase(name) != "live"]
            if gone:
                raise EndpointError(f"the earlier routes need {', '.join(gone)}: not live any more")
            self._reroute(routes)
            return self.routes

    def unload(self, name: str) -> None:
        """End a replica once its last request has ended; it gets no new ones. Raises EndpointError
        for a name that is not loaded, or that routes need."""
        keeper = self._keeper
        with keeper.changed, worded(EndpointError):
            record = keeper.state.replicas.get(name)
            if record is None:
                raise InvalidRequest("name", name, f"one of: {', '.join(keeper.state.replicas)}")
            if name in keeper.state.routed:
                raise InvalidRequest("name", name, "a drafter that no route names")
            if record.phase in ("retiring", "stopping"):
                return
            state = keeper.state.with_replica(
                name, record.now("retiring" if record.phase == "live" else "stopping")
            )
            if state.previous is not None and name in state.previous.drafters:
                state = state.model_copy(update={"previous": None})
            keeper.save(state)
            self._events.tell("retiring", name, f"{name} gets no more requests")

    def progress(self, name: str) -> str | None:
        """Return what a replica's log tells of its loading; None where it tells nothing."""
        return self._keeper.processes.progress(name)

    def down(self, seconds: float = 30.0) -> None:
        """End all replicas and Envoy, and forget them. Running requests get `seconds`. It may be
        called again where it was broken off."""
        self._end()
        keeper = self._keeper
        try:
            with keeper.changed:
                keeper.gateway.close(seconds)
                for name, record in keeper.state.replicas.items():
                    keeper.set(name, record.now("stopping"))
                keeper.processes.end_all(keeper.state.replicas)
                keeper.save(EndpointState())
        finally:
            self._controller.free()

    def interrupt(self) -> None:
        """Have load() wait no longer, in whatever thread it does."""
        self._ended.set()

    def close(self) -> None:
        """Leave everything running, for the next controller; without one it all ends by itself
        after `times.alone`."""
        self._end()
        self._keeper.leave()
        self._controller.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self) -> None:
        self._ended.set()
        self._thread.join()
        if self._taps is not None:
            self._taps.close()
            self._taps = None

    def _open_taps(self) -> TapServer | None:
        if self.endpoint.traces is None:
            return None
        from paceline.endpoint.taps import TapServer, TapTraces

        socket = self._keeper.gateway.files.folder / SOCKET
        return TapServer(socket, TapTraces(self.endpoint.traces))

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise EndpointError("this controller has ended")

    def _phase(self, name: str) -> ReplicaPhase | None:
        record = self._keeper.state.replicas.get(name)
        return None if record is None else record.phase

    def _admit(self, name: str, spec: str) -> None:
        if not NAME.fullmatch(name):
            raise InvalidRequest("name", name, NAME_WORDS)
        keeper = self._keeper
        keeper.problems.pop(name, None)
        record = keeper.processes.admit(spec, keeper.state.replicas)
        keeper.set(name, record)
        self._events.tell("started", name, f"{name} is started on port {record.port}: {spec}")

    def _reroute(self, routes: Routes) -> None:
        keeper, before = self._keeper, self._keeper.state
        keeper.save(before.model_copy(update={"routes": routes, "previous": before.routes}))
        try:
            keeper.gateway.apply(keeper.description())
        except PacelineError:
            keeper.save(before)
            raise
        self._events.tell("routed", None, f"requests go by {routes.model_dump_json()}")

    def _active_requests(self) -> dict[int, int]:
        try:
            return self._keeper.gateway.active_requests()
        except EndpointError:
            return {}

    def _run(self) -> None:
        """Take steps until the controller ends."""
        while not self._ended.wait(STEP_SECONDS):
            self._step()

    def _step(self) -> None:
        """Take a step; what hinders it is told, and tried again."""
        try:
            self._keeper.step()
            self._told = ""
        except (PacelineError, OSError) as error:
            if str(error) != self._told:
                self._told = str(error)
                self._events.tell("controller", None, self._told)


@contextmanager
def worded(kind: type[PacelineError]) -> Iterator[None]:
    """Raise refusals of a field as the error that those who steer know."""
    try:
        yield
    except InvalidRequest as error:
        raise kind(str(error)) from error
