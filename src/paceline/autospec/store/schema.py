"""The tables of a store, by version of the schema, and how an older store becomes a newer one."""

from __future__ import annotations

import sqlite3

APPLICATION_ID = 0x50414345  # "PACE": tells a store from other SQLite files
# The statements that lead from each version of the schema to the next; never change one that was
# released, append.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE versions (
            name TEXT PRIMARY KEY, state TEXT NOT NULL, kind TEXT, spec TEXT, checksum TEXT,
            target TEXT, weights TEXT, tokenizer TEXT, template TEXT,
            parent TEXT REFERENCES versions(name), created REAL NOT NULL, note TEXT NOT NULL)""",
        """CREATE TABLE artefacts (
            name TEXT NOT NULL REFERENCES versions(name), role TEXT NOT NULL,
            checksum TEXT NOT NULL, PRIMARY KEY (name, role))""",
        """CREATE TABLE transitions (
            id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL REFERENCES versions(name),
            before TEXT, after TEXT NOT NULL, cohort TEXT, time REAL NOT NULL,
            actor TEXT NOT NULL, reason TEXT NOT NULL)""",
        """CREATE TABLE services (
            id INTEGER PRIMARY KEY AUTOINCREMENT, cohort TEXT NOT NULL,
            name TEXT NOT NULL REFERENCES versions(name), started REAL NOT NULL, ended REAL,
            replaced INTEGER REFERENCES services(id))""",
        "CREATE UNIQUE INDEX one_live_per_cohort ON services(cohort) WHERE ended IS NULL",
        """CREATE TABLE evaluations (
            id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL REFERENCES versions(name),
            cohort TEXT NOT NULL, al REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL,
            rounds INTEGER NOT NULL, time REAL NOT NULL, source TEXT NOT NULL)""",
        """CREATE TABLE jobs (
            id INTEGER PRIMARY KEY AUTOINCREMENT, purpose TEXT NOT NULL, label TEXT NOT NULL,
            state TEXT NOT NULL, plan TEXT NOT NULL, attempt INTEGER NOT NULL,
            spent REAL NOT NULL, created REAL NOT NULL, started REAL, heartbeat REAL, ended REAL,
            pid INTEGER, stop TEXT, exit_code INTEGER, checkpoint TEXT, reason TEXT NOT NULL)""",
        """CREATE UNIQUE INDEX one_job_per_purpose ON jobs(purpose)
            WHERE state IN ('queued', 'running')""",
        """CREATE TABLE lease (
            id INTEGER PRIMARY KEY CHECK (id = 1), token TEXT NOT NULL, purpose TEXT NOT NULL,
            host TEXT NOT NULL, machine TEXT NOT NULL, pid INTEGER NOT NULL,
            started INTEGER NOT NULL, since REAL NOT NULL, until REAL NOT NULL)""",
    ),
    (
        """CREATE TABLE decisions (
            id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, action TEXT NOT NULL,
            cohorts TEXT NOT NULL, start REAL NOT NULL, noted REAL NOT NULL, seen REAL NOT NULL,
            ended REAL, gain REAL, cost REAL, why TEXT NOT NULL, why_not TEXT NOT NULL)""",
        """CREATE UNIQUE INDEX one_lasting_decision ON decisions(kind, action, cohorts)
            WHERE ended IS NULL""",
        """CREATE TABLE changes (
            id INTEGER PRIMARY KEY AUTOINCREMENT, cohort TEXT NOT NULL, origin TEXT NOT NULL,
            version TEXT NOT NULL, replaces TEXT NOT NULL REFERENCES versions(name),
            stage TEXT NOT NULL, progress TEXT NOT NULL, created REAL NOT NULL,
            changed REAL NOT NULL, ended REAL, reason TEXT NOT NULL)""",
        "CREATE UNIQUE INDEX one_change_per_cohort ON changes(cohort) WHERE ended IS NULL",
        "CREATE UNIQUE INDEX one_change_per_version ON changes(version) WHERE ended IS NULL",
    ),
    (
        # what the last turn of the loop saw: for people alone, no decision reads it
        """CREATE TABLE seen_cohorts (
            cohort TEXT PRIMARY KEY, al REAL, judged REAL, usual REAL, change REAL,
            requests INTEGER NOT NULL, days REAL NOT NULL, reference_days INTEGER NOT NULL,
            time REAL NOT NULL)""",
    ),
    (
        # whose requests are shared out among the live versions, by evidence
        """CREATE TABLE routings (
            cohort TEXT PRIMARY KEY, shares TEXT NOT NULL, source TEXT NOT NULL, why TEXT NOT NULL,
            time REAL NOT NULL)""",
    ),
)


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the version of the tables that a database has; 0: it has none."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def is_foreign(connection: sqlite3.Connection) -> bool:
    """Return whether a database belongs to another program."""
    # tables first: another process may make them, with the mark, between the two looks
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    mark = int(connection.execute("PRAGMA application_id").fetchone()[0])
    return bool(tables) and mark != APPLICATION_ID


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables up to date. The connection is in a transaction, which the caller commits."""
    start = schema_version(connection)
    for statements in MIGRATIONS[start:]:
        for statement in statements:
            connection.execute(statement)
    if start < len(MIGRATIONS):
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
