"""The statements that change versions and whom they serve. All run inside a transaction of the
store, and none decides what is allowed."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass

from paceline.autospec.store.records import DrafterVersion
from paceline.autospec.store.states import VersionState


@dataclass(frozen=True, slots=True)
class Author:
    """The name of the person or program that makes a change, and the reason for it. The history
    keeps both."""

    actor: str
    reason: str


def insert(connection: sqlite3.Connection, version: DrafterVersion, author: Author) -> None:
    """Add a version, with the first line of its history."""
    target = version.target
    connection.execute(
        "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (version.name, version.state, version.kind, version.spec, version.checksum, target.name,
         target.weights, target.tokenizer, target.template, version.parent, version.created,
         version.note),
    )  # fmt: skip
    _insert_artefacts(connection, version)
    _note(connection, version.name, None, version.state, author)


def complete(connection: sqlite3.Connection, version: DrafterVersion, author: Author) -> None:
    """Give a registered version its spec and its files: it is trained then."""
    target = version.target
    connection.execute(
        """UPDATE versions SET kind = ?, spec = ?, checksum = ?, target = ?, weights = ?,
            tokenizer = ?, template = ? WHERE name = ?""",
        (version.kind, version.spec, version.checksum, target.name, target.weights,
         target.tokenizer, target.template, version.name),
    )  # fmt: skip
    _insert_artefacts(connection, version)
    move(connection, version.name, VersionState.REGISTERED, VersionState.TRAINED, author)


def move(
    connection: sqlite3.Connection,
    name: str,
    before: VersionState,
    after: VersionState,
    author: Author,
    cohort: str | None = None,
) -> None:
    """Take a version from one state to another, with a line in its history."""
    _note(connection, name, before, after, author, cohort)
    connection.execute("UPDATE versions SET state = ? WHERE name = ?", (after, name))


def serving(connection: sqlite3.Connection, cohort: str) -> sqlite3.Row | None:
    """Return the service of a cohort that lasts."""
    sql = "SELECT * FROM services WHERE cohort = ? AND ended IS NULL"
    row: sqlite3.Row | None = connection.execute(sql, (cohort,)).fetchone()
    return row


def replaced_by(connection: sqlite3.Connection, cohort: str) -> sqlite3.Row | None:
    """Return the service that a rollback brings back: the one that the present service of a cohort
    has replaced, or the last one where nobody serves it now."""
    present = serving(connection, cohort)
    row: sqlite3.Row | None
    if present is None:
        sql = "SELECT * FROM services WHERE cohort = ? ORDER BY id DESC LIMIT 1"
        row = connection.execute(sql, (cohort,)).fetchone()
    else:
        sql = "SELECT * FROM services WHERE id = ?"
        row = connection.execute(sql, (present["replaced"],)).fetchone()
    return row


def serve(connection: sqlite3.Connection, name: str, cohort: str, replaced: int | None) -> None:
    """Begin the service of a cohort. The one before must have ended."""
    connection.execute(
        "INSERT INTO services(cohort, name, started, replaced) VALUES (?, ?, ?, ?)",
        (cohort, name, time.time(), replaced),
    )


def end_service(connection: sqlite3.Connection, service: sqlite3.Row, author: Author) -> list[str]:
    """End a service. Return the name of its version if it serves nobody now, and is retired."""
    now, name, cohort = time.time(), service["name"], service["cohort"]
    connection.execute("UPDATE services SET ended = ? WHERE id = ?", (now, service["id"]))
    sql = "SELECT count(*) FROM services WHERE name = ? AND ended IS NULL"
    if connection.execute(sql, (name,)).fetchone()[0]:
        return []
    move(connection, name, VersionState.LIVE, VersionState.RETIRED, author, cohort)
    return [name]


def end_all_services(connection: sqlite3.Connection, name: str) -> None:
    """End every service of a version."""
    sql = "UPDATE services SET ended = ? WHERE name = ? AND ended IS NULL"
    connection.execute(sql, (time.time(), name))


def _insert_artefacts(connection: sqlite3.Connection, version: DrafterVersion) -> None:
    for role, checksum in version.artefacts.items():
        values = (version.name, role, checksum)
        connection.execute("INSERT INTO artefacts VALUES (?, ?, ?)", values)


def _note(
    connection: sqlite3.Connection,
    name: str,
    before: VersionState | None,
    after: VersionState,
    author: Author,
    cohort: str | None = None,
) -> None:
    connection.execute(
        """INSERT INTO transitions(name, before, after, cohort, time, actor, reason)
            VALUES (?, ?, ?, ?, ?, ?, ?)""",
        (name, before, after, cohort, time.time(), author.actor, author.reason),
    )
