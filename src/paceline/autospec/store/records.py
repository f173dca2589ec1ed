"""The records of a store: versions of drafters, their history, their scores, a change."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Self

from paceline.autospec.store.states import VersionState

NETWORK, CORPUS = "network", "corpus"  # the roles of folders in a spec
ALL = ""  # the cohort of all requests that no version serves by their own cohort


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """The target that a drafter was made for: its name, the SHA-256 of weights and tokenizer, and a
    digest of its chat template, as far as they are known."""

    name: str | None = None
    weights: str | None = None
    tokenizer: str | None = None
    template: str | None = None

    def differs(self, other: TargetIdentity) -> str | None:
        """Return the name of the first part that is known of both and not equal; None: they may be
        the same target."""
        mine, theirs = asdict(self), asdict(other)
        for part, value in mine.items():
            if part != "name" and value is not None and theirs[part] not in (None, value):
                return part
        return None

    def completed(self, other: TargetIdentity) -> TargetIdentity:
        """Return this identity, with what is unknown of it from another one."""
        known = {part: value for part, value in asdict(self).items() if value is not None}
        return replace(other, **known)


@dataclass(frozen=True, slots=True)
class DrafterVersion:
    """A version of a drafter.

    `spec` is what a server loads, with `{network}` and `{corpus}` in place of folders; `artefacts`
    are the checksums of those folders, and `checksum` stands for spec and folders together. Both
    are None and empty while the version is only registered. `created` is in seconds since 1970.
    """

    name: str
    state: VersionState
    kind: str | None
    spec: str | None
    checksum: str | None
    artefacts: Mapping[str, str]
    target: TargetIdentity
    parent: str | None
    created: float
    note: str

    @property
    def has_files(self) -> bool:
        """Return whether the store has every folder that the spec names."""
        spec = self.spec or ""
        named = {role for role in (NETWORK, CORPUS) if f"{{{role}}}" in spec}
        return self.spec is not None and named == self.artefacts.keys()

    @classmethod
    def of(cls, row: sqlite3.Row, artefacts: Mapping[str, str]) -> Self:
        """Return the version of a row of the store."""
        return cls(
            name=row["name"],
            state=VersionState(row["state"]),
            kind=row["kind"],
            spec=row["spec"],
            checksum=row["checksum"],
            artefacts=artefacts,
            target=TargetIdentity(row["target"], row["weights"], row["tokenizer"], row["template"]),
            parent=row["parent"],
            created=row["created"],
            note=row["note"],
        )


@dataclass(frozen=True, slots=True)
class Transition:
    """A step in the history of a version; `before` is None for its first, `cohort` is the one that
    the step was about."""

    id: int
    name: str
    before: VersionState | None
    after: VersionState
    cohort: str | None
    time: float
    actor: str
    reason: str

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Return the transition of a row of the store."""
        before = None if row["before"] is None else VersionState(row["before"])
        return cls(
            row["id"], row["name"], before, VersionState(row["after"]), row["cohort"], row["time"],
            row["actor"], row["reason"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CohortScore:
    """The acceptance length incl. bonus that a version reached on a cohort, with its 95% interval,
    over so many rounds; `source` says on what it was measured."""

    name: str
    cohort: str
    al: float
    low: float
    high: float
    rounds: int
    time: float
    source: str

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Return the score of a row of the store."""
        return cls(*(row[part] for part in ("name", "cohort", "al", "low", "high", "rounds",
                                            "time", "source")))  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoreChange:
    """The result of a promotion, a retirement or a rollback.

    `live` is the version that serves `cohort` now, None where no version serves it by itself;
    `retired` are those that left the state `live`.
    """

    cohort: str | None
    live: str | None
    retired: tuple[str, ...]
