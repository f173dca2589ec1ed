"""What an endpoint runs, on disk: the next controller goes on from there.

The file is written before the change that it tells of is made, so that a controller which ends in
between leaves a wish that the next one fulfils, and nothing that nobody knows of.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field

from paceline.dataset.training_set import write_whole
from paceline.endpoint.description import EndpointPart
from paceline.endpoint.errors import EndpointError
from paceline.endpoint.processes import ProcessIdentity, taken
from paceline.engine.routes import Routes

STATE, EVENTS, OLD_EVENTS, CONTROLLER = "state.json", "events.jsonl", "events.1.jsonl", "controller"
HOST = "127.0.0.1"  # where replicas listen
EVENT_BYTES = 2**20  # of the file of events, and again of the one before it
KEPT_EVENTS = 1_000
# loading -> live -> retiring -> stopping, then gone; live -> failed where its process ends
ReplicaPhase = Literal["loading", "live", "retiring", "stopping", "failed"]


class ReplicaRecord(EndpointPart):
    """A replica that is to run, or has failed."""

    spec: str
    """Its drafter."""
    port: int
    phase: ReplicaPhase
    since: float
    """When the phase began, in seconds since 1970."""
    pid: int | None = None
    started: int | None = None
    """When the process started, in ticks since the system did."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def identity(self) -> ProcessIdentity | None:
        if self.pid is None or self.started is None:
            return None
        return ProcessIdentity(self.pid, self.started)

    def now(self, phase: ReplicaPhase) -> ReplicaRecord:
        """Return the replica in another phase, which begins now."""
        return self.model_copy(update={"phase": phase, "since": time.time()})


class EndpointState(EndpointPart):
    """The replicas by name, who gets which of them, and who got which before that."""

    replicas: dict[str, ReplicaRecord] = Field(default={})
    routes: Routes | None = None
    previous: Routes | None = None

    @classmethod
    def load(cls, folder: Path) -> EndpointState:
        """Read the state of an endpoint; that of a new one is empty."""
        try:
            text = (folder / STATE).read_text("utf-8")
        except FileNotFoundError:
            return cls()
        return cls.read(json.loads(text), STATE)

    def save(self, folder: Path) -> None:
        write_whole(folder / STATE, self.model_dump_json(indent=1).encode() + b"\n")

    def with_replica(self, name: str, record: ReplicaRecord | None) -> EndpointState:
        """Return the state with another record of a replica; None takes it out."""
        replicas = {**self.replicas, name: record}
        kept = {key: value for key, value in replicas.items() if value is not None}
        return self.model_copy(update={"replicas": kept})

    @property
    def routed(self) -> set[str]:
        """Return the drafters that get requests."""
        if self.routes is None:
            return set()
        shares = [route.shares for route in self.routes.cohorts]
        named = {name for each in shares for name, share in each.items() if share}
        return named if self.routes.default is None else {*named, self.routes.default}


class EndpointEvent(EndpointPart):
    """Something that happened to an endpoint, in plain words."""

    time: float
    kind: str
    """started, ready, failed, routed, retiring, stopped, envoy, or controller."""
    replica: str | None
    text: str


class EventLog:
    """The events of an endpoint: the latest in memory, more of them in a bounded file."""

    def __init__(self, folder: Path, on_event: Callable[[EndpointEvent], None] | None) -> None:
        self._path, self._old = folder / EVENTS, folder / OLD_EVENTS
        self._on_event = on_event
        self.latest: deque[EndpointEvent] = deque(maxlen=KEPT_EVENTS)

    def tell(self, kind: str, replica: str | None, text: str) -> None:
        event = EndpointEvent(time=time.time(), kind=kind, replica=replica, text=text)
        self.latest.append(event)
        with suppress(OSError):  # a full disk must not stop what serves
            if self._path.exists() and self._path.stat().st_size > EVENT_BYTES:
                self._path.replace(self._old)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(event.model_dump_json() + "\n")
        if self._on_event is not None:
            self._on_event(event)


class ControllerLock:
    """Holds an endpoint's folder: one controller at a time. The system frees it when we end."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / CONTROLLER, os.O_RDWR | os.O_CREAT, 0o600)
        if not taken(file):
            holder = os.pread(file, 32, 0).decode() or "unknown"
            os.close(file)
            raise EndpointError(f"another controller steers {folder} already (process {holder})")
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        self._file: int | None = file

    def free(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
