"""Drafters that there are for a target: shipped ones, those of own training runs, public ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline.core import ModelError
from paceline.core.names import find_name
from paceline.drafters.published import PUBLISHED
from paceline.drafters.shipped import PROVENANCE, shipped_folder
from paceline.models.catalog import CATALOGUE, canonical, spellings
from paceline.models.json_files import read_json


@dataclass(frozen=True, slots=True)
class FoundDrafter:
    """A drafter, as `--drafter` takes it, where it comes from, and what else is known of it. The
    target is known by its name alone: its weights are compared when the two are loaded."""

    drafter: str
    source: Literal["shipped", "trained", "published"]
    note: str


def target_name(word: str) -> str:
    """Return the name of a target, which need not be one that this engine serves.

    Raises ModelError for a word that no model is called by, and InvalidRequest for the start of
    several names.
    """
    names = spellings()
    for public in PUBLISHED:
        names |= {public.target: public.target, public.target.partition("/")[2]: public.target}
    return find_name("target", word, names, whole=True) or canonical(word)


def find_drafters(target: str, runs: Sequence[Path]) -> list[FoundDrafter]:
    """Return the drafters for a target, whose name target_name() gave: those in `runs` are the
    best drafters of training runs in these folders, however deep."""
    shipped = shipped_folder(target) if target in CATALOGUE else None
    found = [] if shipped is None else [FoundDrafter(target, "shipped", "comes with Paceline")]
    for folder in runs:
        found += _trained(target, folder)
    hub_id = CATALOGUE[target].hub_id if target in CATALOGUE else target
    public = [each for each in PUBLISHED if each.target == hub_id]
    return [*found, *(FoundDrafter(each.drafter, "published", each.note) for each in public)]


def _trained(target: str, folder: Path) -> Iterator[FoundDrafter]:
    names = {target, Path(target).name}
    for path in sorted(folder.rglob(PROVENANCE)):
        provenance = read_json(path)
        made_for = provenance.get("target")
        if isinstance(made_for, dict) and made_for.get("name") in names:
            learnt = ", ".join(name for name, _ in learnt_sets(provenance))
            yield FoundDrafter(str(path.parent), "trained", f"learnt from {learnt}")


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
