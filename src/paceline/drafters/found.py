"""Drafters that there are for a target: shipped ones, those of own training runs, public ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline.core import ModelError
from paceline.core.names import find_name, local_path
from paceline.drafters.published import PUBLISHED
from paceline.drafters.shipped import PROVENANCE, shipped_folder
from paceline.models.catalog import CATALOGUE, canonical, spellings
from paceline.models.json_files import read_json
from paceline.models.loader import tokenizer_digest, weights_digest
from paceline.models.on_disk import local_folder

WEIGHTS = "weights_sha256"  # of the target, in a provenance


@dataclass(frozen=True, slots=True)
class FoundDrafter:
    """A drafter, as `--drafter` takes it, where it comes from, and what else is known of it.
    `same_weights` says whether it was trained for these weights of the target; None: they were not
    compared."""

    drafter: str
    source: Literal["shipped", "trained", "published"]
    note: str
    same_weights: bool | None = None


def target_name(word: str) -> str:
    """Return the name of a target, which need not be one that this engine serves, or the path that
    `word` gives.

    Raises ModelError for a word that no model is called by, and InvalidRequest for the start of
    several names.
    """
    if word and local_path(word, "target").exists():
        return word
    names = spellings()
    for public in PUBLISHED:
        names |= {public.target: public.target, public.target.partition("/")[2]: public.target}
    return find_name("target", word, names, whole=True) or canonical(word)


def find_drafters(target: str, runs: Sequence[Path]) -> list[FoundDrafter]:
    """Return the drafters for a target, whose name target_name() gave: those in `runs` are the
    best drafters of training runs in these folders, however deep.

    Those are found by the target's weights, which are hashed as for a run, where both the weights
    are on this machine and the drafter says what it was trained for; else by the target's name.
    Drafters for other weights of this name come last.
    """
    found = [*_shipped(target), *_trained(target, runs)]
    hub_id = CATALOGUE[target].hub_id if target in CATALOGUE else target
    public = [each for each in PUBLISHED if each.target == hub_id]
    found += [FoundDrafter(each.drafter, "published", each.note) for each in public]
    return sorted(found, key=lambda each: each.same_weights is False)


def _shipped(target: str) -> Iterator[FoundDrafter]:
    if target in CATALOGUE:
        if shipped_folder(target) is not None:
            yield FoundDrafter(target, "shipped", "comes with Paceline")
        return
    path = local_path(target, "target")
    for name in CATALOGUE if path.is_dir() else ():
        folder = shipped_folder(name)
        if folder is not None and _made_for(folder, path):
            yield FoundDrafter(name, "shipped", "comes with Paceline, for these weights", True)


def _made_for(folder: Path, target: Path) -> bool:
    """Return whether the drafter in a folder was trained for the weights of the model in another.
    Those are read only where the tokenizer is the same."""
    stated = _target_of(read_json(folder / PROVENANCE))
    with suppress(ModelError, OSError):
        if tokenizer_digest(target) == stated.get("tokenizer_sha256"):
            return weights_digest(target) == stated.get(WEIGHTS)
    return False


def _trained(target: str, runs: Sequence[Path]) -> Iterator[FoundDrafter]:
    paths = [path for folder in runs for path in sorted(folder.rglob(PROVENANCE))]
    records = [(path.parent, read_json(path)) for path in paths]
    local = local_path(target, "target")
    names = {target, local.resolve().name if local.exists() else local.name}
    # Many gigabytes may have to be read, so only where there is something to compare.
    weights = _weights(target) if any(WEIGHTS in _target_of(made) for _, made in records) else None
    for folder, made in records:
        learnt_with, is_named = _target_of(made).get(WEIGHTS), _target_of(made).get("name") in names
        same = None if weights is None or learnt_with is None else weights == learnt_with
        if not same and not is_named:
            continue
        note = f"learnt from {', '.join(name for name, _ in learnt_sets(made))}"
        if learnt_with is None:
            note += "; weights were not compared: its provenance has no digest of them"
        elif same is None:
            note += "; weights were not compared: the model's are not on this machine"
        elif not same:
            note = f"trained for other weights of this name; {note}"
        yield FoundDrafter(str(folder), "trained", note, same)


def _target_of(provenance: Mapping[str, Any]) -> Mapping[str, Any]:
    made_for = provenance.get("target")
    return made_for if isinstance(made_for, dict) else {}


def _weights(target: str) -> str | None:
    """Return the digest of a target's weights; None where not all of them are on this machine."""
    folder = local_folder(target)
    with suppress(ModelError):
        return None if folder is None else weights_digest(folder)
    return None


def learnt_sets(provenance: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the sets that a drafter has learnt from, with what its provenance says of each: those
    of the drafter that its training went on from included, as far back as is recorded.

    Raises ModelError for a provenance that does not say.
    """
    data, begun = provenance.get("data"), provenance.get("init")
    if not isinstance(data, dict) or not all(isinstance(fact, dict) for fact in data.values()):
        raise ModelError(f"{PROVENANCE}: data must say which sets the drafter has learnt from")
    learnt = [(name, fact) for name, fact in data.items() if fact.get("trained_on", True)]
    making = begun.get("made") if isinstance(begun, dict) else None
    return learnt + (learnt_sets(making) if isinstance(making, dict) else [])
