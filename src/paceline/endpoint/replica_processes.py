"""The engines' processes behind an endpoint: admitted to a slot, started, looked at, ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from paceline.autospec.serving import ServingFull
from paceline.core import InvalidRequest
from paceline.endpoint.description import ManagedEndpoint, ReplicaSlot
from paceline.endpoint.errors import EndpointError
from paceline.endpoint.processes import LastingProcess, ProcessLaunch
from paceline.endpoint.state import ReplicaRecord
from paceline.engines import KINDS
from paceline.engines.client import answers
from paceline.engines.process import GRACE_SECONDS, check_port

MEMINFO = Path("/proc/meminfo")
GB = 10**9
METRICS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What a look at a replica found: whether its process runs, whether it answers (looked at while
    it loads), and whether it has no request (looked at while it retires)."""

    running: bool
    answers: bool = False
    idle: bool = False


def folder_of_replica(folder: Path, name: str) -> Path:
    """Return where a replica's process has its files, in the folder of its endpoint."""
    return folder / "processes" / f"replica-{name}"


class ReplicaProcesses:
    """The processes of an endpoint's replicas, by the names of their drafters."""

    def __init__(self, folder: Path, endpoint: ManagedEndpoint) -> None:
        self._folder, self._endpoint = folder, endpoint
        self._kind = KINDS[endpoint.engine]
        self._processes: dict[str, LastingProcess] = {}
        self._started: set[str] = set()  # by this controller

    def admit(self, spec: str, records: Mapping[str, ReplicaRecord]) -> ReplicaRecord:
        """Return the record of a replica that can be started now. Raises ServingFull where no slot
        or too little memory is free, and InvalidRequest where the engine cannot serve the
        drafter."""
        taken = {record.port: name for name, record in records.items() if record.phase != "failed"}
        free = [slot for slot in self._endpoint.slots if slot.port not in taken]
        if not free:
            holders = ", ".join(taken.values())
            expected = f"a free slot: {holders} have all {len(taken)}; unload one of them"
            raise ServingFull(str(InvalidRequest("slots", len(self._endpoint.slots), expected)))
        plan = self._endpoint.plan(spec, free[0].port)
        self._kind.launch(plan)
        self._check_memory()
        check_port(plan)
        return ReplicaRecord(spec=spec, port=free[0].port, phase="loading", since=time.time())

    def start(self, name: str, record: ReplicaRecord) -> None:
        """Start a replica's process. Raises InvalidRequest while its port is taken."""
        plan = self._endpoint.plan(record.spec, record.port)
        check_port(plan)
        line = self._kind.launch(plan)
        slot = self._slot(record.port)
        environment = {**line.environment, **self._endpoint.environment, **slot.environment}
        alone = self._endpoint.times.alone
        self._of(name).start(ProcessLaunch(line.command, GRACE_SECONDS, environment, alone=alone))
        self._started.add(name)

    def look(self, name: str, record: ReplicaRecord) -> ReplicaFacts:
        """Return what is to be known about a replica in its phase."""
        process = self._of(name)
        process.bound_log()
        process.keep()
        running = process.is_running()
        return ReplicaFacts(
            running=running,
            answers=running and record.phase == "loading" and answers(record.url),
            idle=running and record.phase == "retiring" and self._is_idle(record.url),
        )

    def problem(self, name: str, record: ReplicaRecord, facts: ReplicaFacts) -> str | None:
        """Return why a loading replica will not come up; None where it still may."""
        if not facts.running and name in self._started:
            return f"it has ended.{self.tail(name)}"
        seconds = self._endpoint.times.ready
        if time.time() > record.since + seconds:
            return f"it did not answer within {seconds:.0f} s.{self.tail(name)}"
        return None

    def identified(self, name: str, record: ReplicaRecord) -> ReplicaRecord:
        """Return the record with the process that the replica is."""
        identity = self._of(name).identity()
        if identity is None:
            raise EndpointError(f"{name} has just ended")
        return record.model_copy(update={"pid": identity.pid, "started": identity.started})

    def ask_to_end(self, name: str) -> None:
        self._of(name).ask_to_end()

    def clear(self, name: str, record: ReplicaRecord) -> None:
        """Kill what may be left of a replica that has ended."""
        self._started.discard(name)
        self._of(name).clear(record.identity)

    def end_all(self, records: Mapping[str, ReplicaRecord]) -> None:
        """End the replicas, all at once, and wait for that."""
        for name in records:
            self.ask_to_end(name)
        for name, record in records.items():
            self._of(name).stop(GRACE_SECONDS + 10)
            self.clear(name, record)

    def leave(self) -> None:
        """Let all run on by themselves, for the next controller."""
        for process in self._processes.values():
            process.leave()

    def progress(self, name: str) -> str | None:
        """Return what the end of a replica's log tells of its loading; None where it tells none."""
        told = map(self._kind.progress, self._of(name).last_lines())
        return next((text for text in reversed([*told]) if text is not None), None)

    def tail(self, name: str) -> str:
        return self._of(name).tail()

    def _of(self, name: str) -> LastingProcess:
        folder = folder_of_replica(self._folder, name)
        return self._processes.setdefault(name, LastingProcess(folder))

    def _slot(self, port: int) -> ReplicaSlot:
        slots = {slot.port: slot for slot in self._endpoint.slots}
        return slots.get(port, ReplicaSlot(port=port))

    def _check_memory(self) -> None:
        needed = self._endpoint.memory_gb
        if needed is None or not MEMINFO.is_file():
            return
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024 / GB
        if free < needed:
            expected = f"at most the {free:.1f} GB that are free; unload a replica first"
            raise ServingFull(str(InvalidRequest("memory_gb", needed, expected)))

    def _is_idle(self, url: str) -> bool:
        """Return whether a replica's own metrics tell of no request, running or waiting."""
        try:
            text = httpx.get(f"{url}/metrics", timeout=METRICS_SECONDS, trust_env=False).text
            metrics = self._kind.read_metrics(text)
        except (httpx.HTTPError, ValueError):
            return False
        return not metrics.running and not metrics.waiting
