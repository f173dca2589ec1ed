"""Runs the command of one start of a job to its end, also without whoever started it: a program of
its own, run by its path.

    python supervisor.py FOLDER LOCK_FD

FOLDER has `start.json`, which says what to run. The file descriptor LOCK_FD holds the job's lock;
this program and the command share it, so the lock is free only when nothing of both is left.

pid.json    {"pid", "started"} of this program, once it runs
alive       a file that is touched now and then while the command runs
exit.json   {"code", "stopped", "seconds"}, once all has ended; `stopped`: "budget", "asked" or null
"""

# No import of Paceline: this process lives as long as the job and should stay small.
from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

POLL_SECONDS = 0.1
ALIVE_SECONDS = 2.0
CANCEL_SECONDS = 600.0
PR_SET_PDEATHSIG = 1


def main(folder: str, lock: int) -> int:
    """Run the command, stop it at the end of its budget or on SIGTERM, and write how it ended."""
    start = _read(os.path.join(folder, "start.json"))
    asked = [False]

    def ask(*_: object) -> None:
        asked[0] = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask)
    _write(folder, "pid.json", {"pid": os.getpid(), "started": _started()})
    begun = time.monotonic()
    code, stopped = _run(folder, start, lock, begun, asked)
    seconds = time.monotonic() - begun
    _write(folder, "exit.json", {"code": code, "stopped": stopped, "seconds": seconds})
    return 0


def _run(
    folder: str, start: dict[str, Any], lock: int, begun: float, asked: list[bool]
) -> tuple[int, str | None]:
    """Run the command. Return its exit code, and why it was stopped."""
    with open(start["log"], "ab", buffering=0) as log:
        try:
            command = subprocess.Popen(
                start["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **start["environment"]},
                process_group=0,
                pass_fds=(lock,),
                preexec_fn=lambda: _step_back(start),
            )
        except OSError as error:
            log.write(f"{start['command'][0]}: {error.strerror}\n".encode())
            return 127, None
        stopped = _wait(folder, command, begun + start["seconds"], asked)
        if stopped is not None:
            _end(command, start["grace"])
            _cancel(start["cancel"], log)
        with suppress(ProcessLookupError):  # what the command has left of its group
            os.killpg(command.pid, signal.SIGKILL)
        command.wait()
    code = command.returncode
    return (code if code >= 0 else 128 - code), stopped


def _wait(
    folder: str, command: subprocess.Popen[bytes], deadline: float, asked: list[bool]
) -> str | None:
    """Wait for the command's end, the end of its budget, or the wish that it ends."""
    touched = 0.0
    while command.poll() is None:
        now = time.monotonic()
        if asked[0]:
            return "asked"
        if now >= deadline:
            return "budget"
        if now - touched > ALIVE_SECONDS:
            touched = now
            with suppress(OSError), open(os.path.join(folder, "alive"), "w"):
                pass
        time.sleep(POLL_SECONDS)
    return None


def _step_back(start: dict[str, Any]) -> None:
    """Give the command its priority and its cores; it dies with this program."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.nice(start["nice"])
    # Linux shares the cores out among sessions first, and a job has a session of its own: without
    # this its priority would count among its own processes only.
    with suppress(OSError), open("/proc/self/autogroup", "w") as group:
        group.write(str(os.nice(0)))
    if start["cpus"]:
        os.sched_setaffinity(0, start["cpus"])


def _end(command: subprocess.Popen[bytes], grace: float) -> None:
    with suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        command.wait(grace)


def _cancel(words: list[str], log: Any) -> None:
    if words:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=CANCEL_SECONDS,
                check=False,
            )


def _started() -> int:
    with open("/proc/self/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def _read(path: str) -> dict[str, Any]:
    with open(path) as file:
        document: dict[str, Any] = json.load(file)
    return document


def _write(folder: str, name: str, value: dict[str, object]) -> None:
    """Write a file whole: its name never stands for half of it."""
    path = os.path.join(folder, name)
    with open(f"{path}.new", "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
