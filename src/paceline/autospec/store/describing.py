"""Versions in words and as JSON: what `show`, `diff` and the page tell of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from paceline.autospec.store.artefacts import ArtefactDamaged
from paceline.autospec.store.reading import StoreReader
from paceline.autospec.store.records import NETWORK, CohortScore, DrafterVersion, Transition
from paceline.autospec.store.spec import PROVENANCE

Json = dict[str, Any]


def version_json(store: StoreReader, version: DrafterVersion) -> Json:
    """Return what a store knows of a version, without looking at its files."""
    return {
        "name": version.name,
        "state": str(version.state),
        "serves": store.serves(version.name),
        "kind": version.kind,
        "spec": store.spec(version) if version.has_files else version.spec,
        "checksum": version.checksum,
        "artefacts": dict(version.artefacts),
        "target": asdict(version.target),
        "parent": version.parent,
        "created": version.created,
        "note": version.note,
        "scores": [score_json(score) for score in store.scores(version.name)],
    }  # fmt: skip


def full_json(store: StoreReader, version: DrafterVersion) -> Json:
    """Return all of a version: its lineage, its history, and whether its files are intact too."""
    fault = file_fault(store, version)
    return {
        **version_json(store, version),
        "lineage": store.lineage(version.name),
        "files": {role: str(path) for role, path in store.folders(version).items()},
        "fault": fault,
        "history": [transition_json(step) for step in store.history(version.name)],
    }


def score_json(score: CohortScore) -> Json:
    """Return a score as JSON, without the version's name."""
    values = asdict(score)
    del values["name"]
    return values


def transition_json(step: Transition) -> Json:
    """Return a line of the history as JSON."""
    return {**asdict(step), "before": step.before and str(step.before), "after": str(step.after)}


def file_fault(store: StoreReader, version: DrafterVersion) -> str | None:
    """Say what is wrong with the files of a version; None where they are as they were added."""
    try:
        store.check_files(version)
    except ArtefactDamaged as error:
        return str(error)
    return None


def differences(
    store: StoreReader, one: DrafterVersion, other: DrafterVersion
) -> list[tuple[str, object, object]]:
    """Return what differs between two versions: (what, of the one, of the other). Settings of
    training come from the provenance in the folder of the network, where there is one."""
    left, right = _facts(store, one), _facts(store, other)
    keys = [*left, *(key for key in right if key not in left)]
    return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]


def paired_scores(
    store: StoreReader, one: DrafterVersion, other: DrafterVersion
) -> list[tuple[str, CohortScore | None, CohortScore | None]]:
    """Return the scores of two versions on each cohort that either was scored on."""
    left = {score.cohort: score for score in store.scores(one.name)}
    right = {score.cohort: score for score in store.scores(other.name)}
    cohorts = sorted(left.keys() | right.keys())
    return [(cohort, left.get(cohort), right.get(cohort)) for cohort in cohorts]


def _facts(store: StoreReader, version: DrafterVersion) -> Json:
    facts: Json = {
        "state": str(version.state),
        "serves": ", ".join(cohort or "all requests" for cohort in store.serves(version.name)),
        "kind": version.kind,
        "spec": version.spec,
        "parent": version.parent,
        **{f"target {part}": value for part, value in asdict(version.target).items()},
        **{f"{role} files": value for role, value in version.artefacts.items()},
        "note": version.note,
    }
    return {**facts, **dict(_training(store, version))}


def _training(store: StoreReader, version: DrafterVersion) -> Iterator[tuple[str, object]]:
    """Yield what the provenance of a trained drafter says of its making."""
    folder = store.folders(version).get(NETWORK)
    try:
        made = json.loads((folder / PROVENANCE).read_bytes()) if folder is not None else {}
    except (OSError, ValueError):  # a drafter that others made has none
        return
    yield from _flat(
        "", {key: made[key] for key in ("generation", "weights", "step") if key in made}
    )
    yield from _flat("shape ", made.get("shape"))
    yield from _flat("setting ", made.get("settings"))
    data = made.get("data")
    for name, facts in data.items() if isinstance(data, Mapping) else ():
        if isinstance(facts, Mapping) and facts.get("trained_on"):
            yield f"trained on {name}", facts.get("digest")


def _flat(start: str, values: object) -> Iterator[tuple[str, object]]:
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield f"{start}{key}", value
