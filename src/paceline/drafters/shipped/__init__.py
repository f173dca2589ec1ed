"""Drafters that come with Paceline: one folder for each name of the catalogue that has one.

A folder holds what `paceline train` leaves: config.json, model.safetensors, paceline.json,
provenance.json and README.md. It is used for the very weights, tokenizer and chat template that
provenance.json names, and for no others: with a fine-tuned copy it would accept less, and nobody
would know why.

Wherever a DFlash drafter is expected, the name of a model that has one here means that drafter:
`smollm2-135m` is a model to `paceline serve`, and a drafter to its `--drafter`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.core import ModelError
from paceline.models.catalog import CATALOGUE, canonical, is_name, pull
from paceline.models.json_files import read_json
from paceline.models.loader import LoadedModel, identity
from paceline.models.weights import SafetensorWeights

FOLDERS = Path(__file__).parent
PROVENANCE = "provenance.json"
# Fields that must be equal, and their names in messages.
COMPARED = {"weights_sha256": "weights", "tokenizer_sha256": "tokenizer", "template": "template"}


@dataclass(frozen=True, slots=True)
class Shipped:
    """The drafter that is shipped under a target's name. `mismatch` says why it is not for this
    target; None: it is."""

    folder: Path
    mismatch: str | None


def shipped_folder(word: str) -> Path | None:
    """Return the folder of the drafter that a model's name stands for; None for any other word."""
    name = canonical(word, "drafter") if is_name(word) else word
    return FOLDERS / name if name in CATALOGUE and (FOLDERS / name).is_dir() else None


def drafter_folder(word: str) -> Path:
    """Return the folder of a DFlash drafter: `word` is a folder, a hub id, which is fetched, or the
    name of a model that has a drafter here.

    Raises ModelError for a model that has none, before it is fetched, and where nothing is there.
    """
    folder = shipped_folder(word)
    if folder is None and is_name(word) and canonical(word, "drafter") in CATALOGUE:
        names = ", ".join(name for name in CATALOGUE if (FOLDERS / name).is_dir())
        raise ModelError(
            f"drafter {word}: no drafter is shipped for that model; expected a folder, a hub id or "
            f"one of {names}"
        )
    return pull(word, what="drafter") if folder is None else folder


def find(loaded: LoadedModel) -> Shipped | None:
    """Return the drafter shipped for `loaded`; None where its catalogue name has none.

    The target's weights on disk are hashed where a file was touched since the last time, and once a
    week. How they are quantised when they are loaded makes no difference. Raises ModelError where
    the shipped folder is incomplete.
    """
    folder = FOLDERS / loaded.name
    if loaded.name not in CATALOGUE or not folder.is_dir():
        return None
    made_for = read_json(folder / PROVENANCE).get("target")
    if not isinstance(made_for, dict) or not set(COMPARED) <= set(made_for):
        fields = ", ".join(COMPARED)
        raise ModelError(f"{folder / PROVENANCE}: target must have {fields}")
    return Shipped(folder, _mismatch(loaded, made_for))


def _mismatch(loaded: LoadedModel, made_for: dict[str, str]) -> str | None:
    if not isinstance(loaded.weights, SafetensorWeights):
        return f"the weights of {loaded.name} were handed over: nothing says what they are"
    actual = identity(loaded)
    for key, label in COMPARED.items():
        if actual[key] != made_for[key]:
            digests = f"{label} {made_for[key][:12]}, not {actual[key][:12]}"
            return f"it was trained for another {loaded.name}: {digests}"
    return None
