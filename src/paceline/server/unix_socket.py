"""A Unix socket that one server at a time has: a lock on a file beside it says whose it is.

A socket that is bound but does not listen yet, because the model loads, refuses connections as one
does that a server has left behind. The lock tells them apart.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat

from paceline.core import PacelineError

MODE = 0o660  # of the socket: the group may connect, as a reverse proxy must
LOCK_MODE = 0o600
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class UnixSocket(socket.socket):
    """A socket bound to `path`; close() removes its file. One that a server has left behind is
    replaced; others are refused.

    Raises PacelineError naming the path.
    """

    def __init__(self, path: str) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path, self._lock_path = path, f"{path}.lock"
        self._lock: int | None = None
        self._own: tuple[int, int] | None = None  # device and inode of the socket's file
        try:
            self._check_file()
            self._lock = _locked(self._lock_path)
            self._remove_left()
            self.bind(path)
            self._own = _identity(path)
            os.chmod(path, MODE)
        except OSError as error:
            self.close()
            raise PacelineError(f"cannot listen on {path}: {error.strerror or error}") from None

    def close(self) -> None:
        """Close the socket, and remove its file and the lock's, if they are still its own."""
        if self._own is not None and _identity(self._path) == self._own:
            _remove(self._path)
        self._own = None
        if self._lock is not None:  # removed before it is released, so that nobody has it yet
            _remove(self._lock_path)
            os.close(self._lock)
            self._lock = None
        super().close()

    def _check_file(self) -> None:
        if os.path.exists(self._path) and not stat.S_ISSOCK(os.stat(self._path).st_mode):
            raise OSError("it is a file that is no socket")

    def _remove_left(self) -> None:
        """Remove the socket of a server that has ended; the lock is held. Another program's may
        still be in use."""
        if not os.path.exists(self._path):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(self._path)
            except ConnectionRefusedError:
                return os.unlink(self._path)
        raise OSError("it is in use")


def _locked(path: str) -> int:
    """Return a descriptor of the file at `path`, which is made and locked. Raises OSError."""
    while True:
        lock = os.open(path, LOCK_FLAGS, LOCK_MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(lock)
            if _identity(path) == (found.st_dev, found.st_ino):
                return lock
        except BlockingIOError:
            os.close(lock)
            raise OSError("it is in use") from None
        os.close(lock)  # a server that has ended removed this file meanwhile


def _identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode of a file; None where there is none."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
