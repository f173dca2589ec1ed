"""Read the JSON files of a model's folder, which hold an object each."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.core import ModelError


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object from a file that a model's folder must have. Raises ModelError."""
    if not path.is_file():
        raise ModelError(f"{path.parent}: no {path.name}; expected a Hugging Face model folder")
    return read_optional_json(path)


def read_optional_json(path: Path) -> dict[str, object]:
    """Read a JSON object from a file; {} where there is no file. Raises ModelError for a file that
    holds something else."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return value
