"""The lease of a store: one process at a time decides for its drafters.

The holder renews the lease from a thread. Where the holder is gone, the next process takes the
lease at once, if it can see that, and else when the lease has run out. A holder whose lease was
taken cannot write any more: its transactions fail with LeaseLost.
"""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from paceline.autospec.processes import is_running, machine_id, started_at
from paceline.autospec.store.database import LeaseLost, StoreDatabase, StoreError
from paceline.autospec.store.store import DrafterStore
from paceline.core import PacelineError

log = logging.getLogger(__name__)
LEASE_SECONDS = 30.0
BEATS = 3  # renewals in the time that a lease lasts


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The process that holds a lease; times in seconds since 1970."""

    token: str
    purpose: str
    host: str
    machine: str
    pid: int
    started: int
    since: float
    until: float

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Return the holder of a row of the store."""
        return cls(*tuple(row)[1:])

    def is_gone(self, now: float) -> bool:
        """Return whether the lease has run out, or its process is known to have ended."""
        here = self.machine == machine_id()
        return now >= self.until or (here and not is_running(self.pid, self.started))

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} ({self.purpose}, since {since})"


class StoreHeld(StoreError):
    """Another process holds the lease of a store; `holder` is that process."""

    def __init__(self, folder: Path, holder: LeaseHolder, now: float) -> None:
        self.holder = holder
        super().__init__(
            f"the store {folder} is held by {holder}; stop that process, or wait: without a sign "
            f"of life from it, its lease ends in {max(0.0, holder.until - now):.0f} s"
        )


class StoreLease:
    """The lease of a store from construction to close(). The store's transactions then belong to
    it: they fail with LeaseLost when it is lost.

    Raises StoreHeld where another process has it.
    """

    def __init__(self, store: DrafterStore, purpose: str, seconds: float = LEASE_SECONDS) -> None:
        self._store, self._seconds = store, seconds
        self.token = uuid.uuid4().hex
        with store.database.transaction() as connection:
            now = time.time()
            holder = _holder(connection)
            if holder is not None and not holder.is_gone(now):
                raise StoreHeld(store.folder, holder, now)
            connection.execute(
                "INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)",
                (self.token, purpose, socket.gethostname(), machine_id(), os.getpid(),
                 started_at(os.getpid()), now, now + seconds),
            )  # fmt: skip
        store.database.token = self.token
        self._ended, self._lost = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="store-lease", daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Return whether another process is known to have taken the lease."""
        return self._lost.is_set()

    def close(self) -> None:
        """Give the lease back, if it was not lost."""
        self._ended.set()
        self._thread.join()
        database = self._store.database
        try:
            with database.transaction() as connection:
                connection.execute("DELETE FROM lease WHERE token = ?", (self.token,))
        except LeaseLost:
            log.warning("the lease of the store %s was lost before its end", self._store.folder)
        finally:
            database.token = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _beat(self) -> None:
        """Renew the lease until its end, from a connection of its own."""
        while not self._ended.wait(self._seconds / BEATS):
            try:
                with StoreDatabase(self._store.folder) as database:
                    renew(database, self.token, self._seconds)
            except LeaseLost as error:
                log.error("%s", error)
                self._lost.set()
                return
            except PacelineError as error:  # the next beat may have more luck
                log.warning("the lease of the store could not be renewed: %s", error)


def renew(database: StoreDatabase, token: str, seconds: float) -> None:
    """Let a lease last for so many more seconds. Raises LeaseLost where another process has it."""
    database.token = token
    with database.transaction() as connection:
        until = time.time() + seconds
        connection.execute("UPDATE lease SET until = ? WHERE token = ?", (until, token))


def holder_of(store: DrafterStore) -> LeaseHolder | None:
    """Return the process that holds a store's lease; None: nobody does."""
    holder = _holder(store.database.connection)
    return None if holder is None or holder.is_gone(time.time()) else holder


def _holder(connection: sqlite3.Connection) -> LeaseHolder | None:
    row = connection.execute("SELECT * FROM lease").fetchone()
    return None if row is None else LeaseHolder.of(row)
