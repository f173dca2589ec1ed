"""Read a store of drafters without changing it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

from paceline.autospec.store.artefacts import ArtefactDamaged, Artefacts
from paceline.autospec.store.database import StoreDatabase
from paceline.autospec.store.records import CohortScore, DrafterVersion, Transition
from paceline.autospec.store.states import VersionState
from paceline.core import InvalidRequest
from paceline.core.names import unknown_name

MOST_HISTORY = 100_000  # lines of history that are read at once


class StoreReader:
    """The questions that a store answers."""

    def __init__(self, database: StoreDatabase, artefacts: Artefacts) -> None:
        self.database, self.artefacts = database, artefacts
        self.folder: Path = database.folder

    def find(self, name: str) -> DrafterVersion | None:
        """Return a version by its name; None where there is none."""
        rows = self.database.rows("SELECT * FROM versions WHERE name = ?", (name,))
        return self._versions_of(rows)[0] if rows else None

    def version(self, name: str, field: str = "name") -> DrafterVersion:
        """Return a version by its name. Raises InvalidRequest, with names that are spelt alike."""
        version = self.find(name)
        if version is None:
            names = {row["name"]: row["name"] for row in self.database.rows(
                "SELECT name FROM versions")}  # fmt: skip
            raise unknown_name(field, name, names, f"a version in {self.folder}")
        return version

    def versions(self, *states: VersionState) -> list[DrafterVersion]:
        """Return the versions in these states, or all, the newest first."""
        marks = ", ".join("?" * len(states))
        where = f"WHERE state IN ({marks})" if states else ""
        sql = f"SELECT * FROM versions {where} ORDER BY created DESC, name DESC"
        return self._versions_of(self.database.rows(sql, [*states]))

    def live(self) -> dict[str, str]:
        """Return the name of the version that is live for each cohort; "" is all requests that no
        other cohort matches."""
        sql = "SELECT cohort, name FROM services WHERE ended IS NULL ORDER BY cohort"
        return {row["cohort"]: row["name"] for row in self.database.rows(sql)}

    def serves(self, name: str) -> list[str]:
        """Return the cohorts that a version serves."""
        return [cohort for cohort, other in self.live().items() if other == name]

    def history(self, name: str | None = None, limit: int = MOST_HISTORY) -> list[Transition]:
        """Return the latest transitions of a version, or of all, the earliest first."""
        where = "" if name is None else "WHERE name = ?"
        sql = f"SELECT * FROM transitions {where} ORDER BY id DESC LIMIT ?"
        values = [*([] if name is None else [name]), limit]
        return [Transition.of(row) for row in reversed(self.database.rows(sql, values))]

    def scores(self, name: str | None = None) -> list[CohortScore]:
        """Return the latest score of a version, or of all, on each cohort."""
        where = "" if name is None else "WHERE name = ?"
        sql = f"""SELECT * FROM evaluations WHERE id IN (
            SELECT max(id) FROM evaluations {where} GROUP BY name, cohort) ORDER BY name, cohort"""
        values = [] if name is None else [name]
        return [CohortScore.of(row) for row in self.database.rows(sql, values)]

    def lineage(self, name: str) -> list[str]:
        """Return the ancestors of a version, its parent first."""
        names: list[str] = []
        parent = self.version(name).parent
        while parent is not None:
            names.append(parent)
            parent = self.version(parent).parent
        return names

    def folders(self, version: DrafterVersion) -> Mapping[str, Path]:
        """Return the folders with the files of a version, by role."""
        return {role: self.artefacts.path(value) for role, value in version.artefacts.items()}

    def spec(self, version: DrafterVersion) -> str:
        """Return what a server loads for a version, as `--drafter` takes it: with the folders in
        the store. Raises InvalidRequest for a version without files."""
        if version.spec is None or not version.has_files:
            raise InvalidRequest("name", version.name, "a version whose files are in the store")
        return version.spec.format_map(self.folders(version))

    def check_files(self, version: DrafterVersion) -> None:
        """Raise ArtefactDamaged, naming the version, where its files have changed since they were
        added, or were removed."""
        if version.spec is not None and not version.has_files:
            raise ArtefactDamaged(f"version {version.name}: its files were removed from the store")
        for checksum in version.artefacts.values():
            self.artefacts.check(version.name, checksum)

    def _versions_of(self, rows: list[sqlite3.Row]) -> list[DrafterVersion]:
        found: dict[str, dict[str, str]] = {}
        for row in self.database.rows("SELECT * FROM artefacts"):
            found.setdefault(row["name"], {})[row["role"]] = row["checksum"]
        return [DrafterVersion.of(row, found.get(row["name"], {})) for row in rows]
