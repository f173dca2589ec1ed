"""Processes of this machine (Linux), told apart also where a number was given out again."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_STATE, _STARTED = 0, 19  # places of fields in /proc/PID/stat, counted behind the program's name


def machine_id() -> str:
    """Return what only processes that see the same process numbers have in common: the boot of the
    machine and the namespace of its numbers."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"


def started_at(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; None where none runs."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in ("Z", "X") else int(fields[_STARTED])


def is_running(pid: int, started: int) -> bool:
    """Return whether the process that had this number and start still runs."""
    return started_at(pid) == started


def processes_with(variable: str, value: str) -> list[int]:
    """Return the processes of this user that were started with this variable in their
    environment."""
    wanted = f"{variable}={value}".encode()
    pids = []
    for path in _PROC.iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            try:
                settings = (path / "environ").read_bytes().split(b"\0")
            except OSError:  # it has ended, or is another user's
                continue
            if wanted in settings:
                pids.append(int(path.name))
    return pids
