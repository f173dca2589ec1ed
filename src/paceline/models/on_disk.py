"""Models on this disk: copies from PyPI, converted GGUF files, and those of the hub's cache."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import CacheNotFound, HFValidationError, LocalEntryNotFoundError

from paceline.core import CacheError, ModelError
from paceline.core.cache import cache_dir
from paceline.core.checksums import MANIFEST
from paceline.core.names import local_path
from paceline.models.catalog import CATALOGUE, entry_folder
from paceline.models.gguf_convert import converted_folder
from paceline.models.packed_file import remove_packed
from paceline.models.weights import SafetensorWeights

HUB, PYPI, GGUF = "hub", "PyPI", "GGUF"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on disk. `source` is one of HUB, PYPI and GGUF, `size` is in bytes, and `revisions`
    are those of a repository of the hub."""

    name: str
    source: str
    folder: Path
    size: int
    revisions: tuple[str, ...] = ()


def stored_models() -> list[StoredModel]:
    """Return the models on disk, largest first. Raises CacheError where the cache has no folder."""
    found = [*_converted("models", PYPI), *_converted("gguf", GGUF), *_of_hub()]
    return sorted(found, key=lambda model: -model.size)


def local_folder(name: str) -> Path | None:
    """Return the folder of a model, by the name that canonical() gives, where it is on this disk,
    and None where it is not. Nothing is fetched or converted."""
    path = local_path(name, "model")
    if name in CATALOGUE:
        path = entry_folder(name)
    elif path.suffix == ".gguf" and path.is_file():
        path = converted_folder(path)
    elif not path.exists():
        with suppress(LocalEntryNotFoundError, HFValidationError):
            path = Path(huggingface_hub.snapshot_download(name, local_files_only=True))
    return path if path.is_dir() else None


def remove(model: StoredModel) -> None:
    """Delete a model from disk, with its packed weights. A server that runs with it keeps what it
    has read. Raises CacheError where that is not allowed."""
    try:
        with suppress(ModelError):  # what is damaged can be deleted too
            remove_packed(SafetensorWeights(model.folder).fingerprint())
        if model.source == HUB:
            huggingface_hub.scan_cache_dir(huggingface_hub.constants.HF_HUB_CACHE).delete_revisions(
                *model.revisions
            ).execute()
        else:
            shutil.rmtree(model.folder)
    except OSError as error:
        raise CacheError(f"{model.folder} cannot be deleted: {error}") from error


def _converted(kind: str, source: str) -> Iterator[StoredModel]:
    folder = cache_dir() / kind
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.name.startswith(".") or not (entry / MANIFEST).is_file():
            continue  # not ours: every entry of the cache has a manifest
        parts = 2 if source == PYPI else 1  # hash and version, or a digest, after the name
        name = entry.name.rsplit("-", parts)[0]
        if source == GGUF or name in CATALOGUE:
            yield StoredModel(name, source, entry, _size(entry))


def _of_hub() -> Iterator[StoredModel]:
    try:
        repositories = huggingface_hub.scan_cache_dir(huggingface_hub.constants.HF_HUB_CACHE).repos
    except (CacheNotFound, OSError):
        return
    for repository in repositories:
        newest = max(repository.revisions, key=lambda r: r.last_modified, default=None)
        if repository.repo_type == "model" and newest is not None and _has_weights(newest):
            hashes = tuple(revision.commit_hash for revision in repository.revisions)
            folder = newest.snapshot_path
            yield StoredModel(repository.repo_id, HUB, folder, repository.size_on_disk, hashes)


def _has_weights(revision: huggingface_hub.CachedRevisionInfo) -> bool:
    names = {file.file_name for file in revision.files}
    weights = any(name.endswith(".safetensors") for name in names)
    return weights and "config.json" in names


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
