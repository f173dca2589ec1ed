"""What tells one target from another: digests of its weights, its tokenizer and its template."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from paceline.models.loader import LoadedModel
from paceline.models.weights import weight_files


def identity(loaded: LoadedModel) -> dict[str, Any]:
    """name, weights_sha256, tokenizer_sha256 and template of a target, as a training set's manifest
    and a drafter's provenance state them. Reads every byte of the weights.

    Files count by name and content, so that a folder may lie anywhere.
    """
    return {
        "name": loaded.name,
        "weights_sha256": _files_digest(weight_files(loaded.path)),
        "tokenizer_sha256": tokenizer_digest(loaded.path),
        "template": template_digest(getattr(loaded.tokenizer, "chat_template", None) or ""),
    }


def tokenizer_digest(folder: Path) -> str:
    """SHA-256 of the tokenizer in a model's folder."""
    return _files_digest([folder / "tokenizer.json"])


def template_digest(template: str) -> str:
    """What is said of a chat template: enough to tell two apart."""
    return hashlib.sha256(template.encode()).hexdigest()[:16]


def _files_digest(paths: list[Path]) -> str:
    """SHA-256 of one file; of several, over their names and digests."""
    digests = []
    for path in sorted(paths):
        with open(path, "rb") as file:
            digests.append((path.name, hashlib.file_digest(file, "sha256").hexdigest()))
    if len(digests) == 1:
        return digests[0][1]
    return hashlib.sha256("\n".join(f"{n} {d}" for n, d in digests).encode()).hexdigest()
