"""Brings what runs to what is to run: replicas through their phases, and Envoy to what follows.

loading → live → retiring → stopping → gone; live → failed where the process ends by itself.

A step looks first and then acts, and each of its acts can be repeated: a controller that is killed
in between leaves work for the next one, and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from paceline.core import PacelineError
from paceline.endpoint.description import (
    EndpointDescription,
    EndpointSettings,
    ManagedEndpoint,
    ReplicaDescription,
)
from paceline.endpoint.gateway import EnvoyGateway
from paceline.endpoint.replica_processes import ReplicaFacts, ReplicaProcesses
from paceline.endpoint.state import EndpointState, EventLog, ReplicaRecord

IDLE_LOOKS = 3  # looks at a retiring replica in a row that find no request


class ReplicaKeeper:
    """The replicas of one endpoint, and Envoy. Whoever changes `state` holds `changed`, which is
    told of every change. `problems` says why replicas did not come up."""

    def __init__(self, folder: Path, endpoint: ManagedEndpoint, events: EventLog) -> None:
        self._folder, self._endpoint, self._events = folder, endpoint, events
        self.state = EndpointState.load(folder)
        self.changed = threading.Condition(threading.RLock())
        self.processes = ReplicaProcesses(folder, endpoint)
        self.gateway = EnvoyGateway(folder)
        self.problems: dict[str, str] = {}
        self._idle: Counter[str] = Counter()

    def save(self, state: EndpointState) -> None:
        """Make a change of what is to run, on disk first."""
        state.save(self._folder)
        self.state = state
        self.changed.notify_all()

    def set(self, name: str, record: ReplicaRecord | None) -> None:
        """Change one replica; None takes it out."""
        self.save(self.state.with_replica(name, record))

    def description(self) -> EndpointDescription:
        """Return what Envoy is to do."""
        return description_of(self._endpoint, self.state)

    def leave(self) -> None:
        """Let all processes run on by themselves."""
        self.processes.leave()
        self.gateway.process.leave()

    def step(self) -> None:
        """Bring each replica one phase further at most. Raises PacelineError and OSError for the
        first thing that could not be done; the rest is."""
        records = self.state.replicas
        facts = {name: self.processes.look(name, record) for name, record in records.items()}
        retiring = any(record.phase == "retiring" for record in records.values())
        active = self.gateway.active_requests() if retiring else {}
        with self.changed:
            self._keep_envoy()
            problems: list[Exception] = []
            for name, record in records.items():
                try:
                    if self.state.replicas.get(name) is record:
                        self._advance(name, record, facts[name], active)
                except (PacelineError, OSError) as error:
                    problems.append(error)
            self._keep_envoy()
            if problems:
                raise problems[0]

    def _keep_envoy(self) -> None:
        if self.gateway.keep(self.description()):
            self._events.tell("envoy", None, "Envoy had ended and is started again")

    def _advance(
        self, name: str, record: ReplicaRecord, facts: ReplicaFacts, active: Mapping[int, int]
    ) -> None:
        match record.phase:
            case "loading":
                self._bring_up(name, record, facts)
            case "live" if not facts.running:
                self._fail(name, record)
            case "retiring":
                idle = not active.get(record.port) and (facts.idle or self._has_waited(record))
                self._idle[name] = self._idle[name] + 1 if idle else 0
                if self._idle[name] >= IDLE_LOOKS or not facts.running:
                    self.set(name, record.now("stopping"))
            case "stopping" if not facts.running:
                self.processes.clear(name, record)
                self._idle.pop(name, None)
                self.set(name, None)
                self._events.tell("stopped", name, f"{name} has ended")
            case "stopping" if not self._is_served(name):
                self.processes.ask_to_end(name)

    def _has_waited(self, record: ReplicaRecord) -> bool:
        """Return whether a replica has been in its phase for so long that Envoy would have ended
        any silent request. The metrics of an engine that hangs do not count any more then."""
        return time.time() > record.since + self._endpoint.times.idle

    def _is_served(self, name: str) -> bool:
        """Return whether Envoy may still send requests to a replica."""
        applied = self.gateway.applied
        return applied is None or name in applied.names

    def _bring_up(self, name: str, record: ReplicaRecord, facts: ReplicaFacts) -> None:
        if facts.answers:
            live = self.processes.identified(name, record).now("live")
            state = self.state.with_replica(name, live)
            self.gateway.apply(description_of(self._endpoint, state))
            self.save(state)
            self._events.tell("ready", name, f"{name} is ready at {live.url}")
        elif (problem := self.processes.problem(name, record, facts)) is not None:
            self.problems[name] = problem
            self._events.tell("failed", name, f"{name} did not come up: {problem}")
            self.set(name, record.now("stopping"))
        elif not facts.running:
            self.processes.start(name, record)

    def _fail(self, name: str, record: ReplicaRecord) -> None:
        """Take a replica that has ended out of Envoy, whose requests others take over."""
        self.processes.clear(name, record)
        self.set(name, record.now("failed"))
        standin = self.description().standins.get(name)
        if name not in self.state.routed:
            who = "It had no requests to take over."
        elif standin is None:
            who = "No other replica can take its requests over."
        else:
            who = f"{standin} takes its requests over."
        self._events.tell("failed", name, f"{name} has ended. {who}{self.processes.tail(name)}")


def description_of(endpoint: ManagedEndpoint, state: EndpointState) -> EndpointDescription:
    """Return what Envoy is to do. A drafter that routes name and that is not live has a stand-in:
    the default, or else the first that is live."""
    kept = {n: r for n, r in state.replicas.items() if r.phase in ("live", "retiring")}
    live = [name for name, record in kept.items() if record.phase == "live"]
    routes = state.routes if live else None
    default = routes.default if routes is not None and routes.default in live else None
    settings = {name: getattr(endpoint, name) for name in EndpointSettings.model_fields}
    return EndpointDescription(
        **settings,
        replicas=[
            ReplicaDescription(
                name=name,
                url=record.url,
                engine=endpoint.engine,
                drafter=record.spec,
                fallback=record.phase == "live",
            )
            for name, record in kept.items()
        ],
        routes=routes,
        standins={
            name: default or live[0]
            for name in (routes.drafters if routes is not None else ())
            if name not in live
        },
    )
