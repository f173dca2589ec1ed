"""Processes that are killed (SIGKILL) at one exact point of a change to a store.

The points of a change are its SQL statements, commits included, and each place where it touches a
file: `kill -9` comes right before the point. A point past the last is right after the change.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.autospec.jobs import JobRunner, JobTemplate
from paceline.autospec.store import Author, DrafterStore, StoreLease, VersionState
from paceline.autospec.store import artefacts as artefacts_module

ME = Author("test", "because")
MAKE = "make"  # the change that makes a store
FILE_CALLS: dict[Any, tuple[str, ...]] = {
    shutil: ("rmtree",),
    subprocess: ("Popen",),
    Path: ("write_text",),
    os: ("rename",),
    artefacts_module: ("sync", "write_manifest", "folder_checksum"),
}
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.autospec.store.killed"])


class Killer:
    """Kills this process right before its point with a number."""

    def __init__(self, point: int) -> None:
        self.left = point

    def __call__(self, *_: object) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def watch(self, store: DrafterStore) -> None:
        """Count the statements of a store from now on."""
        store.database.connection.set_trace_callback(self)

    def watch_files(self) -> None:
        """Count what touches files from now on; a copy counts at its start and in its middle."""
        for module, names in FILE_CALLS.items():
            for name in names:
                setattr(module, name, self._before(getattr(module, name)))
        copyfile = shutil.copyfile

        def copy(source: Path, place: Path) -> None:
            self()
            place.write_bytes(source.read_bytes()[:3])
            self()
            copyfile(source, place)

        shutil.copyfile = copy  # type: ignore[assignment]

    def watch_connections(self) -> None:
        """Count the statements of connections that are opened from now on."""
        connect = sqlite3.connect

        def open_watched(*args: Any, **keywords: Any) -> sqlite3.Connection:
            self()
            connection: sqlite3.Connection = connect(*args, **keywords)
            connection.set_trace_callback(self)
            return connection

        sqlite3.connect = open_watched  # type: ignore[assignment]

    def _before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            self()
            return function(*args, **keywords)

        return call


def killed_at(point: int, folder: Path, change: str, *values: object, files: bool = False) -> bool:
    """Run a change of CHANGES in a process that is killed at a point. Return whether the change
    has that point."""
    process = _FORKS.Process(target=_run, args=(point, folder, change, values, files))
    process.start()
    process.join(60)
    assert process.exitcode in (-signal.SIGKILL, 7), process.exitcode
    return process.exitcode == -signal.SIGKILL


def killed_after(folder: Path, change: str, *values: object) -> None:
    """Run a change in a process that is killed once the change has returned."""
    process = _FORKS.Process(target=_run_and_die, args=(folder, change, values))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def _run(point: int, folder: Path, change: str, values: tuple[Any, ...], files: bool) -> None:
    killer = Killer(point)
    if change == MAKE:
        killer.watch_connections()
        DrafterStore(folder, create=True)
    else:
        store = DrafterStore(folder, create=True)
        killer.watch(store)
        if files:
            killer.watch_files()
        CHANGES[change](store, *values)
    os._exit(7)  # without closing the store: the next process finds it as a kill leaves it


def _run_and_die(folder: Path, change: str, values: tuple[Any, ...]) -> None:
    CHANGES[change](DrafterStore(folder, create=True), *values)
    os.kill(os.getpid(), signal.SIGKILL)


def _promote(store: DrafterStore, name: str, to: str, cohort: str = "") -> None:
    store.promote(name, ME, VersionState(to), cohort=cohort)


def _register(store: DrafterStore, name: str, spec: str | None) -> None:
    store.register(name, ME, spec=spec)


def _start_job(store: DrafterStore, template: dict[str, Any], purpose: str) -> None:
    JobRunner(store).start(JobTemplate.read(template), purpose, {})


CHANGES: dict[str, Callable[..., None]] = {
    "register": _register,
    "complete": lambda store, name, spec: _none(store.complete(name, spec, ME)),
    "promote": _promote,
    "retire": lambda store, name: _none(store.retire(name, ME)),
    "rollback": lambda store, cohort="": _none(store.rollback(ME, cohort)),
    "discard": lambda store, name: store.discard(name),
    "score": lambda store, name: store.add_score(name, "", 2.0, 1.9, 2.1, 100, "traces"),
    "start_job": _start_job,
    "poll_job": lambda store, number: _none(JobRunner(store).poll(number)),
    "stop_job": lambda store, number: _none(JobRunner(store).stop(number, "enough")),
    "lease": lambda store: _none(StoreLease(store, "test")),
}


def _none(_: object) -> None:
    return None
