"""Models by their configs alone, for predictions and mocks: no weights are fetched or read.

Only a GGUF file needs torch, for its rotary frequencies, so it is imported then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.core.names import (
    find_name,
    listed_models,
    listed_spellings,
    local_path,
    unknown_name,
)
from paceline.models.hub import HUB_ID, fetch_config
from paceline.models.json_files import read_json

CONFIG = "config.json"
GGUF = ".gguf"


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """A model's name and its config.json.

    `checkpoint` is the folder, file or hub id that an engine is launched with; None for a listed
    model. `stored_bits` are the bits of a weight in a GGUF file, on average, which the config does
    not tell: GGUF files are served in bfloat16.
    """

    name: str
    config: Mapping[str, Any] = field(repr=False)
    checkpoint: str | None = None
    stored_bits: float | None = None


def describe(word: str) -> DescribedModel:
    """Return the model that a word means: a folder, a config.json, a GGUF file, a listed model's
    name, hub id or the start of one, or another hub id, whose config.json alone is fetched.

    Raises InvalidRequest for a word or a file that is none of these, and ModelError for a file that
    cannot be read, a GGUF file that cannot be served and a hub id that cannot be fetched.
    """
    path = local_path(word, "model")
    if path.is_file() and path.suffix == GGUF:
        from paceline.models.gguf_convert import read_gguf

        file = read_gguf(path)
        return DescribedModel(path.name, file.config, str(path), file.bits_per_weight)
    if path.exists():
        file_path = find_config(word)
        folder = file_path.parent
        name = folder.resolve().name if file_path.name == CONFIG else file_path.stem
        return DescribedModel(name, read_json(file_path), str(folder))
    listed = _find_listed(word, "model")
    if listed is not None:
        return DescribedModel(listed, listed_models()[listed].config)
    return DescribedModel(word, read_json(find_config(word)), word)


def find_config(word: str, field: str = "model") -> Path:
    """Return the config.json that a word means: the file itself, the one in a folder, that of a
    listed model, or that of a hub id, which is fetched. Raises InvalidRequest naming `field`, and
    ModelError for a hub id that cannot be fetched."""
    path = local_path(word, field)
    if path.is_dir():
        path = path / CONFIG
        if not path.is_file():
            expected = f"a folder with a {CONFIG}; this one has none"
            raise InvalidRequest(field, word, expected)
    if path.exists():
        if path.suffix != ".json":
            expected = f"a {CONFIG}, a folder that holds one, or for a model a {GGUF} file"
            raise InvalidRequest(field, word, expected)
        return path
    listed = _find_listed(word, field)
    if listed is not None:
        return listed_models()[listed].path
    is_file = path.suffix in (".json", GGUF)
    if HUB_ID.fullmatch(word) and not is_file:
        return fetch_config(word)
    if is_file or "/" in word:
        expected = f"the path of a folder, a {CONFIG} or a {GGUF} file; there is none"
        raise InvalidRequest(field, word, expected)
    kinds = f"a folder, a {CONFIG}, a {GGUF} file, a hub id (owner/name), or"
    every, brief = f"{kinds} one of {', '.join(listed_models())}", f"{kinds} a listed name"
    raise unknown_name(field, word, listed_spellings(), every, brief=brief)


def _find_listed(word: str, field: str) -> str | None:
    """Return the listed model of a name. The start of a hub id may be another model's whole id."""
    return find_name(field, word, listed_spellings(), whole="/" in word)
