"""Where an endpoint's state lies, what it is at the moment, and how it is ended: without steering
it, so that anybody may look while a controller runs, and after it was killed."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.autospec.serving import FAILED
from paceline.core import InvalidRequest
from paceline.dataset.training_set import write_whole
from paceline.endpoint.description import ManagedEndpoint
from paceline.endpoint.errors import EndpointError
from paceline.endpoint.gateway import EnvoyGateway
from paceline.endpoint.processes import LastingProcess
from paceline.endpoint.replica_processes import ReplicaProcesses, folder_of_replica
from paceline.endpoint.replicas import ServedReplica, served_replica
from paceline.endpoint.state import CONTROLLER, ControllerLock, EndpointState
from paceline.endpoint.steering import SOCKET
from paceline.engine.routes import Routes

DESCRIPTION = "endpoint.json"  # what was started, in the folder
EXPECTED = "an endpoint's file, as endpoint.yaml, or its folder"
POLL_SECONDS = 0.1
ENDED_SECONDS = 120.0  # that a controller gets to end everything, beyond what requests get


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """An endpoint at the moment. `controller` is the process that steers it, if one does; `spare`
    are slots without a replica."""

    endpoint: ManagedEndpoint
    controller: int | None
    envoy: bool
    replicas: Mapping[str, ServedReplica]
    spare: int
    routes: Routes | None

    @property
    def serves(self) -> bool:
        """Return whether requests are answered."""
        return self.envoy and any(each.is_ready for each in self.replicas.values())


@dataclass(frozen=True, slots=True)
class EndpointPlace:
    """The folder of an endpoint."""

    folder: Path

    @classmethod
    def of(cls, word: str) -> EndpointPlace:
        """Return the folder that is meant: that of endpoint.yaml is endpoint, beside it. Raises
        InvalidRequest (field `endpoint`)."""
        path = Path(word).expanduser()
        if path.is_file() and path.suffix:
            return cls(path.with_suffix(""))
        if path.is_file() or not path.is_dir():
            raise InvalidRequest("endpoint", word, EXPECTED)
        return cls(path)

    @property
    def address(self) -> str:
        """The address of the API by which the endpoint is steered."""
        return f"unix:{(self.folder / SOCKET).absolute()}"

    def note(self, endpoint: ManagedEndpoint) -> None:
        """Write what is started down, for those who look or end it."""
        write_whole(self.folder / DESCRIPTION, endpoint.model_dump_json(indent=1).encode() + b"\n")

    def endpoint(self) -> ManagedEndpoint:
        """Return what was started. Raises EndpointError where nothing was."""
        path = self.folder / DESCRIPTION
        if not path.is_file():
            raise EndpointError(
                f"no endpoint was started in {self.folder}; `paceline endpoint up FILE` starts one"
            )
        return ManagedEndpoint.from_file(path, "endpoint")

    def controller(self) -> int | None:
        """Return the process that steers the endpoint; None: nobody does."""
        try:
            file = os.open(self.folder / CONTROLLER, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.pread(file, 32, 0) or 0)
        finally:
            os.close(file)
        return None

    def status(self) -> EndpointStatus:
        """Look at the endpoint. Raises EndpointError where none was started."""
        endpoint, state = self.endpoint(), EndpointState.load(self.folder)
        gateway = EnvoyGateway(self.folder)
        active: dict[int, int] = {}
        with suppress(EndpointError):
            active = gateway.active_requests()
        replicas = {}
        for name, record in state.replicas.items():
            runs = LastingProcess(folder_of_replica(self.folder, name)).is_running()
            served = served_replica(name, record, active.get(record.port, 0))
            replicas[name] = served if runs else served.as_failed()
        taken = sum(each.state != FAILED for each in replicas.values())
        return EndpointStatus(
            endpoint=endpoint,
            controller=self.controller(),
            envoy=gateway.process.is_running(),
            replicas=replicas,
            spare=len(endpoint.slots) - taken,
            routes=state.routes,
        )

    def end(self, seconds: float) -> None:
        """End Envoy and all replicas, by their controller where there is one; running requests get
        `seconds`. Raises EndpointError."""
        endpoint, controller = self.endpoint(), self.controller()
        if controller is None:
            self._end_left(endpoint, seconds)
            return
        with suppress(ProcessLookupError):
            os.kill(controller, signal.SIGTERM)
        end = time.monotonic() + seconds + ENDED_SECONDS
        while self.controller() == controller:
            if time.monotonic() > end:
                raise EndpointError(f"its controller, process {controller}, does not end")
            time.sleep(POLL_SECONDS)

    def _end_left(self, endpoint: ManagedEndpoint, seconds: float) -> None:
        """End what a controller that was killed has left."""
        lock = ControllerLock(self.folder)
        try:
            EnvoyGateway(self.folder).close(seconds)
            state = EndpointState.load(self.folder)
            ReplicaProcesses(self.folder, endpoint).end_all(state.replicas)
            EndpointState().save(self.folder)
        finally:
            lock.free()
