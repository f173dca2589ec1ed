"""Locks between processes: a lock ends with the process that holds it, however that one ends."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
PATIENCE_SECONDS = 3.0  # a wait that takes longer is told to the user, once
# What flock() says on network file systems that are mounted without locks.
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def held_lock(path: Path, work: str) -> Iterator[bool]:
    """Wait for the lock of the file `path` and hold it; `work` says what the holder does.

    Yields False where the file system has no locks, so that others may do the same work. Raises
    OSError where the file cannot be made. The file stays: it is empty or holds a process id.
    """
    descriptor = _open(path)
    try:
        exclusive = _wait(descriptor, path, work)
        if exclusive:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield exclusive
    finally:
        os.close(descriptor)


@contextmanager
def free_lock(path: Path) -> Iterator[bool]:
    """Hold the lock of the file `path` if nobody else does; yield whether that is so.

    Raises OSError where the file cannot be made or the file system has no locks.
    """
    descriptor = _open(path)
    try:
        yield _take(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _wait(descriptor: int, path: Path, work: str) -> bool:
    started, told = time.monotonic(), False
    try:
        while not _take(descriptor):
            if not told and time.monotonic() - started > PATIENCE_SECONDS:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace") or "?"
                log.warning("waiting for process %s, which is %s (lock: %s)", holder, work, path)
                told = True
            time.sleep(POLL_SECONDS)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
