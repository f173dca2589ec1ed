"""One process at a time writes to a folder: a set that is made, a run that trains."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.core import InvalidRequest

LOCK = ".lock"  # holds the id of the process that writes, while it does


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made where there is none, for this process alone. The system frees
    it when the process ends in any way. Raises InvalidRequest (field `out`), with the id of the
    process that holds it."""
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The lock is the folder's: a file that is deleted and made anew can be locked twice.
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InvalidRequest("out", str(folder), f"a folder to write to ({error})") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            expected = f"a folder that no other run is writing to; {_holder(path)} is"
            raise InvalidRequest("out", str(folder), expected) from None
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
    """Return the id of the process that holds a folder, or None where none does."""
    try:
        process = int((folder / LOCK).read_text())
        os.kill(process, 0)
    except PermissionError:
        return process  # another user's
    except (OSError, ValueError):
        return None
    return process


def _holder(path: Path) -> str:
    try:
        return f"process {int(path.read_text())}"
    except (OSError, ValueError):
        return "another process"
