"""The store of drafters: versions, their states, and whom they serve, one transaction a step."""

from __future__ import annotations

import math
import re
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from paceline.autospec.store import changes
from paceline.autospec.store.artefacts import Artefacts
from paceline.autospec.store.changes import Author
from paceline.autospec.store.database import StoreDatabase, StoreError
from paceline.autospec.store.reading import StoreReader
from paceline.autospec.store.records import ALL, DrafterVersion, StoreChange, TargetIdentity
from paceline.autospec.store.spec import FolderSpec, checksum_of
from paceline.autospec.store.states import SERVING, VersionState, check_promotion, next_state
from paceline.core import InvalidRequest
from paceline.core.cohorts import Cohort

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
LEAST_AL = 1.0  # the bonus token alone
UNKNOWN_TARGET = TargetIdentity()


class DrafterStore(StoreReader):
    """A store of drafters in a folder, for one thread.

    Every change is one transaction and leaves a line in the history; a process that is killed
    leaves the store before or after it. Raises InvalidRequest, naming the field, for a change that
    is not allowed, and StoreError where the store cannot be read or written.
    """

    def __init__(self, folder: Path, *, create: bool = False, update: bool = True) -> None:
        if "," in str(folder.absolute()):
            raise InvalidRequest("store", str(folder), "a path without a comma, which ends a spec")
        database = StoreDatabase(folder.absolute(), create=create, update=update)
        super().__init__(database, Artefacts(folder.absolute()))

    def close(self) -> None:
        """Close the store's file."""
        self.database.close()

    def register(
        self,
        name: str,
        author: Author,
        *,
        spec: str | None = None,
        target: TargetIdentity = UNKNOWN_TARGET,
        parent: str | None = None,
        note: str = "",
    ) -> DrafterVersion:
        """Add a version. With a `spec` its folders are copied into the store, and it is trained;
        without one it is registered, until `complete` brings them. `target` is what is known of the
        target besides what the folders say."""
        _check_name(name)
        state = VersionState.REGISTERED if spec is None else VersionState.TRAINED
        version = DrafterVersion(
            name, state, None, None, None, {}, target, parent, time.time(), note
        )
        if parent is not None:
            self._target_beside(version, parent)
        with self.artefacts.changing():
            self._check_new(name)
            version = self._with_files(version, spec) if spec is not None else version
            with self.database.transaction() as connection:
                self._check_new(name)
                changes.insert(connection, version, author)
        return version

    def complete(self, name: str, spec: str, author: Author) -> DrafterVersion:
        """Copy the folders of a registered version's spec into the store: it is trained then."""
        self._check_state(self.version(name), VersionState.REGISTERED)
        with self.artefacts.changing():
            version = self._with_files(self.version(name), spec)
            version = replace(version, state=VersionState.TRAINED)
            with self.database.transaction() as connection:
                self._check_state(self.version(name), VersionState.REGISTERED)
                changes.complete(connection, version, author)
        return version

    def promote(
        self,
        name: str,
        author: Author,
        to: VersionState | None = None,
        *,
        cohort: str = ALL,
        expected: VersionState | None = None,
    ) -> StoreChange:
        """Take a version to a later state, by default the next one. Made live, it serves a cohort,
        and the version that served it before is retired unless it serves others.

        The version must be in the state `expected`, by default the one that it has at the call, so
        that of two promotions at once only one happens. Its files are compared with their checksums
        before anybody may load them.
        """
        version = self.version(name)
        before = version.state if expected is None else expected
        after = next_state(name, before) if to is None else to
        check_promotion(name, before, after)
        cohort = check_cohort(cohort)
        if cohort != ALL and after is not VersionState.LIVE:
            raise InvalidRequest("cohort", cohort, "none: only a live version serves a cohort")
        if after in SERVING:
            self.check_files(version)
        with self.database.transaction() as connection:
            self._check_state(self.version(name), before)
            self._check_scored(name, after)
            if after is not VersionState.LIVE:
                changes.move(connection, name, before, after, author)
                return StoreChange(None, None, ())
            return self._go_live(connection, name, before, cohort, author)

    def retire(self, name: str, author: Author) -> StoreChange:
        """Retire a version; a live one ends its service of every cohort."""
        with self.database.transaction() as connection:
            before = self.version(name).state
            if before is VersionState.RETIRED:
                raise InvalidRequest("name", name, "a version that is not retired yet")
            changes.end_all_services(connection, name)
            changes.move(connection, name, before, VersionState.RETIRED, author)
        return StoreChange(None, None, (name,))

    def rollback(self, author: Author, cohort: str = ALL) -> StoreChange:
        """Bring back the version that served a cohort before the present one, and end the service
        of the present one. Where a cohort had none of its own before, it has none again."""
        cohort = check_cohort(cohort)
        back = changes.replaced_by(self.database.connection, cohort)
        version = self.previous(cohort)
        if version is not None:
            self.check_files(version)
        with self.database.transaction() as connection:
            now = changes.replaced_by(connection, cohort)
            if (now and now["id"]) != (back and back["id"]):
                raise StoreError(f"{_shown(cohort)} has got another version meanwhile; look again")
            return self._go_back(connection, back, cohort, author)

    def previous(self, cohort: str = ALL) -> DrafterVersion | None:
        """Return the version that a rollback of a cohort would bring back; None where there is
        none."""
        back = changes.replaced_by(self.database.connection, check_cohort(cohort))
        return None if back is None else self.version(back["name"])

    def discard(self, name: str) -> None:
        """Remove the files of a retired version that no other version shares. The version stays in
        the history; nothing brings it back."""
        self._check_state(self.version(name), VersionState.RETIRED)
        with self.artefacts.changing():
            with self.database.transaction() as connection:
                self._check_state(self.version(name), VersionState.RETIRED)
                connection.execute("DELETE FROM artefacts WHERE name = ?", (name,))
            self._clear_artefacts()

    def add_score(
        self, name: str, cohort: str, al: float, low: float, high: float, rounds: int, source: str
    ) -> None:
        """Keep the acceptance length incl. bonus that a version reached on a cohort, with its 95%
        interval; earlier scores stay."""
        cohort = check_cohort(cohort)
        if not LEAST_AL <= low <= al <= high < math.inf:
            expected = f"an acceptance length within its interval, from {LEAST_AL:g} on"
            raise InvalidRequest("al", [low, al, high], expected)
        if rounds < 1:
            raise InvalidRequest("rounds", rounds, "a whole number of at least 1")
        with self.database.transaction() as connection:
            self.version(name)
            connection.execute(
                """INSERT INTO evaluations(name, cohort, al, low, high, rounds, time, source)
                    VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
                (name, cohort, al, low, high, rounds, time.time(), source),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _with_files(self, version: DrafterVersion, spec: str) -> DrafterVersion:
        """Return a version with the folders of a spec, which are in the store then. Folders that no
        version refers to are removed: somebody was killed on the way."""
        parsed = FolderSpec.parse(spec)
        made_for = parsed.target()
        if (part := version.target.differs(made_for)) is not None:
            raise InvalidRequest("spec", spec, f"a drafter for the {part} that was stated")
        version = replace(version, target=version.target.completed(made_for))
        if version.parent is not None:
            version = replace(version, target=self._target_beside(version, version.parent))
        self._clear_artefacts()
        artefacts: Mapping[str, str] = {
            role: self.artefacts.keep(folder) for role, folder in parsed.folders.items()
        }
        return replace(
            version,
            kind=parsed.kind,
            spec=parsed.form,
            checksum=checksum_of(parsed.form, artefacts),
            artefacts=artefacts,
        )

    def _clear_artefacts(self) -> None:
        """Remove folders that no version refers to. The lock of the artefacts is held."""
        rows = self.database.rows("SELECT DISTINCT checksum FROM artefacts")
        self.artefacts.clear({row["checksum"] for row in rows})

    def _target_beside(self, version: DrafterVersion, parent: str) -> TargetIdentity:
        """Return the target of a version and its parent. Raises InvalidRequest where they differ
        in the tokenizer: weights and template may change from one to the next."""
        inherited = self.version(parent, "parent").target
        mine, theirs = version.target.tokenizer, inherited.tokenizer
        if mine is not None and theirs not in (None, mine):
            expected = f"a version for the tokenizer {mine[:12]}; {parent} is for {theirs[:12]}"
            raise InvalidRequest("parent", parent, expected)
        return version.target.completed(inherited)

    def _go_live(
        self,
        connection: sqlite3.Connection,
        name: str,
        before: VersionState,
        cohort: str,
        author: Author,
    ) -> StoreChange:
        present = changes.serving(connection, cohort)
        if present is not None and present["name"] == name:
            expected = f"a version that does not serve {_shown(cohort)} yet"
            raise InvalidRequest("name", name, expected)
        retired = []
        if present is not None:
            retired = changes.end_service(connection, present, _because_of(name, author))
        changes.serve(connection, name, cohort, None if present is None else present["id"])
        changes.move(connection, name, before, VersionState.LIVE, author, cohort)
        return StoreChange(cohort, name, tuple(retired))

    def _go_back(
        self, connection: sqlite3.Connection, back: sqlite3.Row | None, cohort: str, author: Author
    ) -> StoreChange:
        present = changes.serving(connection, cohort)
        if back is None and (present is None or cohort == ALL):
            now = "" if present is None else f" before {present['name']}"
            message = (
                f"cohort: nothing to go back to: no version was live for {_shown(cohort)}{now}"
            )
            raise InvalidRequest("cohort", cohort, "a cohort with an earlier version", message)
        retired = []
        if present is not None:
            retired = changes.end_service(connection, present, author)
        if back is None:
            return StoreChange(cohort, None, tuple(retired))
        name = back["name"]
        changes.serve(connection, name, cohort, back["replaced"])
        state = self.version(name).state
        changes.move(connection, name, state, VersionState.LIVE, author, cohort)
        return StoreChange(cohort, name, tuple(retired))

    def _check_new(self, name: str) -> None:
        if self.find(name) is not None:
            raise InvalidRequest("name", name, "a name that no version has yet")

    def _check_scored(self, name: str, after: VersionState) -> None:
        if after is VersionState.SCORED and not self.scores(name):
            raise InvalidRequest(
                "to", str(after), f"a later state, or a score first: {name} has none"
            )

    def _check_state(self, version: DrafterVersion, expected: VersionState) -> None:
        if version.state is not expected:
            wanted = f"a version that is {expected}; it is {version.state}"
            raise InvalidRequest("name", version.name, wanted)


def check_cohort(label: str) -> str:
    """Return a cohort's label in its one form; "" stands for all requests. Raises
    InvalidRequest."""
    return label if label == ALL else Cohort.parse(label).label


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        expected = "up to 100 letters, digits, '.', '_', '-', beginning with a letter or digit"
        raise InvalidRequest("name", name, expected)


def _because_of(name: str, author: Author) -> Author:
    return Author(author.actor, f"replaced by {name}: {author.reason}" if author.reason
                  else f"replaced by {name}")  # fmt: skip


def _shown(cohort: str) -> str:
    return "all requests" if cohort == ALL else f"the cohort {cohort}"
