"""One process at a time writes to a folder: a set that is made, a run that trains."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.core import InvalidRequest

LOCKS = Path("/proc/locks")  # on Linux: all locks, with the inodes of what they lock
LOCK = ".lock"  # holds the id of the process that writes, while it does


@contextmanager
def locked(folder: Path, field: str = "out") -> Iterator[None]:
    """Hold the folder, which is made where there is none, for this process alone. The system frees
    it when the process ends in any way. Raises InvalidRequest (`field`), with the id of the process
    that holds it."""
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The lock is the folder's: a file that is deleted and made anew can be locked twice.
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InvalidRequest(field, str(folder), f"a folder to write to ({error})") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            expected = f"a folder that no other run is writing to; {_holder(path)} is"
            raise InvalidRequest(field, str(folder), expected) from None
        with suppress(OSError):  # a full disk: the lock holds without its name
            path.write_text(f"{os.getpid()}\n")
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()
    finally:
        os.close(handle)


def writer_of(folder: Path) -> int | None:
    """Return the id of the process of this machine that holds a folder, or None where none does.
    The lock itself is not tried: whoever begins at that moment would find it taken."""
    try:
        process = int((folder / LOCK).read_text())
        if process <= 0:
            return None
        os.kill(process, 0)
    except PermissionError:
        pass  # another user's
    except (OSError, ValueError, OverflowError):
        return None
    return process if _is_locked(folder) else None


def _is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder, as far as the system tells: the process
    that wrote its id may be gone, and another one have the id."""
    try:
        held = LOCKS.read_text()
    except OSError:
        return True  # no Linux: the id alone has to do
    inode = folder.stat().st_ino
    return any(" FLOCK " in line and f":{inode} " in line for line in held.splitlines())


def _holder(path: Path) -> str:
    try:
        return f"process {int(path.read_text())}"
    except (OSError, ValueError):
        return "another process"
