"""Stores for tests, and the judge of a store: what must hold in it whatever was killed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from paceline.autospec.store import Author, DrafterStore, VersionState
from paceline.core.checksums import folder_checksum

ME = Author("test", "because")
COHORT = "Qwen3-8B|chat|de|eu"


def drafter_folder(folder: Path, content: bytes = b"weights") -> Path:
    """Make a folder that looks like a drafter's."""
    (folder / "inner").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(content)
    (folder / "inner" / "more.txt").write_bytes(content[::-1])
    return folder


def store_with(folder: Path, **states: str) -> DrafterStore:
    """Make a store with a look-up version in each of these states."""
    store = DrafterStore(folder, create=True)
    for name, state in states.items():
        add_version(store, name, VersionState(state))
    return store


def add_version(store: DrafterStore, name: str, state: VersionState) -> None:
    """Bring a version of a look-up into a state."""
    if state is VersionState.REGISTERED:
        store.register(name, ME)
        return
    store.register(name, ME, spec="suffix")
    store.add_score(name, "", 2.0, 1.9, 2.1, 100, "traces")
    if state is VersionState.RETIRED:
        store.retire(name, ME)
    elif state is not VersionState.TRAINED:
        store.promote(name, ME, state)


def snapshot(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return all that a store holds, without times and numbers of rows."""
    columns = {
        "versions": "name, state, kind, spec, checksum, target, weights, tokenizer, parent, note",
        "artefacts": "name, role, checksum",
        "transitions": "name, before, after, cohort, actor, reason",
        "services": "cohort, name, ended IS NULL, replaced",
        "evaluations": "name, cohort, al, low, high, rounds, source",
        "lease": "purpose",
    }
    with DrafterStore(folder) as store:
        return {
            table: [tuple(row) for row in store.database.rows(f"SELECT {names} FROM {table}")]
            for table, names in columns.items()
        }


def faults(folder: Path) -> list[str]:
    """Return what is wrong in a store; every store, however left, must have nothing."""
    with DrafterStore(folder) as store:
        connection: sqlite3.Connection = store.database.connection
        found = [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
        found += [str(tuple(row)) for row in connection.execute("PRAGMA foreign_key_check")]
        live = store.live()
        for version in store.versions():
            found += _faults_of_history(store, version.name, version.state)
            if (version.state is VersionState.LIVE) != (version.name in live.values()):
                found.append(f"{version.name} is {version.state}, live are {live}")
            for role, path in store.folders(version).items():
                if not path.is_dir() or folder_checksum(path) != version.artefacts[role]:
                    found.append(f"{version.name}: {role} is not whole")
        return found


def _faults_of_history(store: DrafterStore, name: str, state: VersionState) -> list[str]:
    steps = store.history(name)
    befores, afters = [step.before for step in steps], [step.after for step in steps]
    if befores[:1] != [None] or befores[1:] != afters[:-1]:
        return [f"{name}: the history has a gap: {steps}"]
    return [] if afters[-1] is state else [f"{name} is {state}, its history says {afters[-1]}"]
