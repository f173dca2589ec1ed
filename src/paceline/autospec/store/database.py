"""The SQLite file of a store: opened, brought up to date, and written one transaction at a time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from paceline.autospec.store import schema
from paceline.core import InvalidRequest, PacelineError

FILE = "autospec.db"
BUSY_SECONDS = 10.0  # that a writer waits for another one
WAL_POLL_SECONDS = 0.02
_REMEDIES = (
    ("SQLITE_FULL", "its disk is full: free space there; the store is as it was before"),
    ("SQLITE_IOERR", "free space on its disk, or mend it; the store is as it was before"),
    ("SQLITE_BUSY", "another process keeps it locked; try again"),
    ("SQLITE_READONLY", "this user may not write there"),
    ("SQLITE_CANTOPEN", "this user may not open it, or its disk is full"),
    ("SQLITE_NOTADB", f"the file {FILE} is no store of drafters"),
    ("SQLITE_CORRUPT", f"the file {FILE} is damaged: put a copy of it in its place"),
)


class StoreError(PacelineError):
    """A store of drafters cannot be read or written; the message names it, and what to do."""


class LeaseLost(StoreError):
    """Another process has taken the lease, so this one must not write to the store any more."""


class StoreDatabase:
    """A connection to a store's file, for one thread.

    With a `token` every transaction fails with LeaseLost unless the store's lease has that token.
    Raises InvalidRequest (field `store`) where there is no store and `create` is false, or one of a
    later Paceline, and StoreError where the file cannot be used. With `update` false a store of an
    earlier Paceline is refused too, so that nothing is written.
    """

    def __init__(self, folder: Path, *, create: bool = False, update: bool = True) -> None:
        self.folder, self.path = folder, folder / FILE
        self.token: str | None = None
        if create:
            self._make_folder()
        elif not self.path.is_file():
            expected = f"a folder with {FILE}, as `paceline drafters add` makes it"
            raise InvalidRequest("store", str(folder), expected)
        with self._worded():
            self.connection = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None, cached_statements=256
            )
        try:
            self._prepare(update=update)
        except BaseException:
            self.connection.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Hold the one write transaction of the store; it is undone where the block raises. Inside
        another one it is a part of that."""
        connection = self.connection
        if connection.in_transaction:
            yield connection
            return
        with self._worded():
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._check_lease()
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        """Return the rows of a query."""
        with self._worded():
            return self.connection.execute(sql, values).fetchall()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_folder(self) -> None:
        try:
            # a corpus holds users' tokens, so nobody else may look into a new folder
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            expected = f"a folder that can be made ({error.strerror})"
            raise InvalidRequest("store", str(self.folder), expected) from error

    def _prepare(self, *, update: bool) -> None:
        connection = self.connection
        connection.row_factory = sqlite3.Row
        with self._worded():
            if schema.is_foreign(connection):
                raise InvalidRequest("store", str(self.path), "a store of drafters")
            self._turn_to_wal()
            connection.execute("PRAGMA synchronous = FULL")  # a commit outlives a power cut
            connection.execute("PRAGMA foreign_keys = ON")
            version = schema.schema_version(connection)
            if version < len(schema.MIGRATIONS):
                if not update:
                    expected = (
                        "a store that another command of this Paceline has brought up to date, as "
                        "`paceline drafters list` does"
                    )
                    raise InvalidRequest("store", str(self.folder), expected)
                with self.transaction() as open_connection:
                    schema.migrate(open_connection)
            elif version > len(schema.MIGRATIONS):
                expected = (
                    f"a store with a schema of up to {len(schema.MIGRATIONS)}; a later Paceline "
                    f"has brought this one to {version}"
                )
                raise InvalidRequest("store", str(self.folder), expected)

    def _turn_to_wal(self) -> None:
        """Have readers and the writer not wait for each other. SQLite does not wait for another
        process that does the same to a new file, so this does."""
        end = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                mode = self.connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > end:
                    raise
                time.sleep(WAL_POLL_SECONDS)
                continue
            if mode != "wal":
                expected = f"a folder on a disk of this machine (SQLite's journal is {mode} there)"
                raise InvalidRequest("store", str(self.folder), expected)
            return

    def _check_lease(self) -> None:
        if self.token is None:
            return
        row = self.connection.execute("SELECT * FROM lease").fetchone()
        if row is None or row["token"] != self.token:
            holder = "nobody" if row is None else f"process {row['pid']} on {row['host']}"
            raise LeaseLost(
                f"the lease of the store {self.folder} ran out, and {holder} has it now; this "
                "process stops writing to the store"
            )

    @contextmanager
    def _worded(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", None) or ""
            remedy = next((text for start, text in _REMEDIES if name.startswith(start)), "")
            end = f"; {remedy}" if remedy else ""
            message = f"the store {self.folder} cannot be used ({error}){end}"
            raise StoreError(message) from error
