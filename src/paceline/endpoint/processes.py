"""Processes that outlive whoever started them, and that the next controller finds again.

A process runs under the engines' supervisor, which ends all of it together. Its folder holds

    lock   held by the supervisor as long as it lives: the system frees it, whatever ends it
    pid    of the program itself
    stop   a pipe: a line on it asks the supervisor to end the program, as does that nobody has had
           it open for a while
    log    what the program prints

The lock is taken before the program starts, and handed to it. So there is no moment in which the
program runs and the lock is free, and none can be started twice.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from paceline.endpoint.errors import EndpointError
from paceline.engines import supervisor

LOG_BYTES = 16 * 2**20  # of a log; past that only its end is kept
KEPT_BYTES = 2**20
SHOWN_LINES = 25
STARTED_SECONDS = 10.0  # until a supervisor has started its program
LOOKED_SECONDS = 0.5  # that others may take to look whether a lock is held
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process: its id and when it started, in ticks since the system did. Ids are used again,
    the two together are not."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class ProcessLaunch:
    """A program and what it gets: variables beside ours, the folder that it runs in, how many
    seconds it has to end by itself, and for how many it runs on when nobody keeps it; None is for
    ever."""

    command: Sequence[str]
    grace: float
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    alone: float | None = None


class LastingProcess:
    """A process whose files lie in `folder`, running or not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._child: subprocess.Popen[bytes] | None = None  # of ours, to be reaped
        self._kept: int | None = None  # its pipe, open as long as somebody is to know of it

    def start(self, launch: ProcessLaunch) -> None:
        """Start the program. Raises EndpointError where one runs here already."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not taken(lock):
                raise EndpointError(f"{self.folder.name} runs already")
            self._spawn(launch, lock)
        finally:
            os.close(lock)  # the supervisor has its own

    def keep(self) -> None:
        """Let the program know that somebody is there, until leave(), or until this process ends,
        by whatever signal."""
        if self._kept is None:
            with suppress(OSError):
                self._kept = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)

    def leave(self) -> None:
        """Let the program run on by itself, for as long as its launch said."""
        if self._kept is not None:
            os.close(self._kept)
            self._kept = None

    def is_running(self) -> bool:
        """Return whether the program, or what is left of it, runs."""
        if self._child is not None and self._child.poll() is not None:
            self._child = None
        try:
            lock = os.open(self._lock, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def identity(self) -> ProcessIdentity | None:
        """Return which process the program is; None where it does not run."""
        end = time.monotonic() + STARTED_SECONDS
        while self.is_running() and time.monotonic() < end:
            with suppress(OSError, ValueError):
                pid = int((self.folder / "pid").read_text())
                return ProcessIdentity(pid, _started(pid))
            time.sleep(POLL_SECONDS)  # the supervisor is starting it
        return None

    def ask_to_end(self) -> None:
        """Ask the program to end; it gets its grace, and is then killed."""
        with suppress(OSError):
            pipe = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(pipe, b"\n")
            finally:
                os.close(pipe)

    def stop(self, seconds: float) -> None:
        """Ask the program to end, and wait for that. Raises EndpointError where it does not."""
        self.ask_to_end()
        end = time.monotonic() + seconds
        while self.is_running():
            if time.monotonic() > end:
                raise EndpointError(f"{self.folder.name} did not end within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def clear(self, identity: ProcessIdentity | None) -> None:
        """Kill what a killed supervisor has left of its program, and of no other."""
        if identity is None:
            return
        with suppress(OSError):
            if _started(identity.pid) == identity.started:
                os.killpg(identity.pid, signal.SIGKILL)

    def last_lines(self) -> list[str]:
        """Return the last lines of the log."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - KEPT_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-SHOWN_LINES:]

    def tail(self) -> str:
        """Return the end of the log, as the end of a message."""
        lines = self.last_lines()
        shown = "\n".join(f"  {line}" for line in lines)
        return f"\nEnd of its log ({self._log}):\n{shown}" if lines else " It has printed nothing."

    def bound_log(self) -> None:
        """Keep only the end of a log that has grown long. The program goes on writing after it."""
        with suppress(OSError):
            if self._log.stat().st_size <= LOG_BYTES:
                return
            with self._log.open("rb+") as file:
                file.seek(-KEPT_BYTES, os.SEEK_END)
                kept = file.read()
                (self.folder / "log.before").write_bytes(kept)
                file.truncate(0)

    @property
    def _lock(self) -> Path:
        return self.folder / "lock"

    @property
    def _pipe(self) -> Path:
        return self.folder / "stop"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _spawn(self, launch: ProcessLaunch, lock: int) -> None:
        if not self._pipe.exists():
            os.mkfifo(self._pipe, 0o600)
        self.leave()
        # Opened first: a reader that has never had a writer does not notice that there is none.
        self._kept = os.open(self._pipe, os.O_RDWR | os.O_NONBLOCK)
        # Whoever also writes to it keeps it from breaking off.
        forever = launch.alone is None
        pipe = os.open(self._pipe, (os.O_RDWR if forever else os.O_RDONLY) | os.O_NONBLOCK)
        pid = os.open(self.folder / "pid", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-S", "-E", supervisor.__file__, str(pid), str(launch.grace),
                 str(launch.alone or 0), *launch.command],
                stdin=pipe,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **launch.environment},
                cwd=launch.folder,
                pass_fds=(pid, lock),
                start_new_session=True,
            )  # fmt: skip
        finally:
            for descriptor in (pipe, pid, log):
                os.close(descriptor)


def taken(lock: int) -> bool:
    """Take a lock, unless a process holds it; somebody may be looking at it for a moment."""
    end = time.monotonic() + LOOKED_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)
        else:
            return True


def _started(pid: int) -> int:
    """Return when a process started, in ticks since the system did. Raises OSError."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[19])
