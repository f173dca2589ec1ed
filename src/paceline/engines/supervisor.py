"""Runs one engine, and leaves no process of it behind: a program of its own, run by its path.

    python supervisor.py PID_FD GRACE ALONE COMMAND...

The engine runs in a process group of its own. When it ends, when the pipe on stdin says so or
breaks off, or on SIGTERM, all processes that it has started are ended too, also those that it does
not know of any more: their orphans come to the supervisor (Linux). The pipe breaks off when whoever
started the supervisor is gone, by whatever signal; a pipe with a name gets ALONE seconds in which
somebody else may open it. A line on the pipe asks the engine to end; GRACE is how many seconds it
then gets before it is killed. The process id of the engine is written to the file descriptor
PID_FD. The exit code is the engine's.
"""

# No import of Paceline: this process lives as long as the engine and should stay small.
from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_SECONDS = 0.2
KILLED_SECONDS = 5.0  # that the system gets to end what was killed


def main(pid_fd: int, grace: float, alone: float, command: list[str]) -> int:
    """Run the command to its end. Return its exit code, as a shell would."""
    asked = [False]  # whether the engine is to end

    def ask(*_: object) -> None:
        asked[0] = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        engine = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=_die_with_parent,
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)
        return 127
    with os.fdopen(pid_fd, "w") as file:
        file.write(str(engine.pid))
    pipe = _Pipe(sys.stdin.fileno(), alone)
    try:
        while engine.poll() is None and not asked[0]:
            # in this order: a signal may come while it waits for the pipe
            asked[0] = pipe.is_over() or asked[0]
        if engine.poll() is None:
            engine.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                engine.wait(grace)
    finally:
        _end_all(engine)
    code = engine.returncode
    return code if code >= 0 else 128 - code


class _Pipe:
    """The pipe from whoever is to know of the engine."""

    def __init__(self, file: int, alone: float) -> None:
        self._file, self._alone = file, alone
        self._since: float | None = None  # when it was first seen that nobody has it open

    def is_over(self) -> bool:
        """Wait a moment for the pipe; return whether it has said anything, or nobody has had it
        open for too long."""
        try:
            readable, _, _ = select.select([self._file], [], [], POLL_SECONDS)
            if not readable:
                self._since = None
                return False
            if os.read(self._file, 1):
                return True
        except (InterruptedError, BlockingIOError):
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._alone:
            return True
        time.sleep(POLL_SECONDS)
        return False


def _end_all(engine: subprocess.Popen[bytes]) -> None:
    """Kill the engine's group and every orphan of it."""
    with suppress(ProcessLookupError):
        os.killpg(engine.pid, signal.SIGKILL)
    engine.wait()
    end = time.monotonic() + KILLED_SECONDS
    while time.monotonic() < end:
        for child in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Return the processes whose parent this one is; none where the system does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _die_with_parent() -> None:
    """Let the system kill this process when the one that started it ends (Linux); what
    core.signals has as well, which cannot be imported here."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    """Set an option of this process on Linux; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
