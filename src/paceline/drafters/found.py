"""Drafters that there are for a target: shipped ones, those of own training runs, public ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

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

    def as_json(self) -> dict[str, str]:
        """Return plain values."""
        return asdict(self)


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
            sets = provenance.get("data")
            learnt = ", ".join(sets) if isinstance(sets, dict) else ""
            yield FoundDrafter(str(path.parent), "trained", f"learnt from {learnt or 'no set'}")
