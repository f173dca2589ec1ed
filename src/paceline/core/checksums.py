"""A folder's manifest: the size and checksums of every file, written once and checked at each use.

Files are hashed in pieces on several threads, so that one large file uses all of them too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MANIFEST = "paceline-manifest.json"
PIECE_BYTES = 64 << 20
READ_BYTES = 1 << 20
MOST_THREADS = 8  # SHA-256 on eight cores is faster than the disks that models lie on


def write_manifest(folder: Path) -> None:
    """Write the manifest of all files that are in `folder` now."""
    text = json.dumps({"piece_bytes": PIECE_BYTES, "files": _listed(folder)}, indent=1)
    (folder / MANIFEST).write_text(text + "\n", "utf-8")


def folder_checksum(folder: Path) -> str:
    """Return one SHA-256 of the names, sizes and contents of all files in `folder`. The manifest
    and hidden files do not count. Raises OSError."""
    return sha256_of_json(_listed(folder))


def damage(folder: Path) -> str | None:
    """Say how `folder` differs from its manifest; None when every byte is as it was written.

    Hidden files that the manifest does not list are ignored: some file systems add them. Raises
    PermissionError where the folder may not be read.
    """
    try:
        return _difference(folder)
    except PermissionError:
        raise
    except OSError as error:  # a bad sector, or no folder at all
        return f"it cannot be read: {error}"


def sha256_of_json(value: object) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys."""
    plain = json.loads(json.dumps(value))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _difference(folder: Path) -> str | None:
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return "it has no checksums, because an older version made it or a file was lost"
    try:
        saved = json.loads(manifest.read_bytes())
        sizes = {name: int(entry["size"]) for name, entry in saved["files"].items()}
        expected = {name: entry["sha256"] for name, entry in saved["files"].items()}
        same_pieces = saved["piece_bytes"] == PIECE_BYTES
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is not readable"
    if not same_pieces:
        return f"{MANIFEST} was written for pieces of another size"
    files = files_of(folder)
    if missing := sizes.keys() - files.keys():
        return f"{min(missing)} is missing"
    if extra := files.keys() - sizes.keys():
        return f"{min(extra)} does not belong there"
    for name, path in files.items():
        if (size := path.stat().st_size) != sizes[name]:
            return f"{name} has {size} bytes instead of {sizes[name]}"
    digests = _digests(files, sizes)
    changed = [name for name in sorted(files) if digests[name] != expected[name]]
    return f"the content of {changed[0]} has changed" if changed else None


def _listed(folder: Path) -> dict[str, dict[str, object]]:
    """Return size and checksums of the files of a folder, as its manifest lists them."""
    files = files_of(folder)
    sizes = {name: path.stat().st_size for name, path in files.items()}
    digests = _digests(files, sizes)
    return {name: {"size": sizes[name], "sha256": digests[name]} for name in sorted(files)}


def files_of(folder: Path) -> dict[str, Path]:
    """Return the files below `folder`, by relative name, without hidden ones and the manifest."""
    paths = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    hidden = {name for name in paths if any(part.startswith(".") for part in name.parts)}
    return {name.as_posix(): paths[name] for name in paths.keys() - hidden - {Path(MANIFEST)}}


def _digests(files: Mapping[str, Path], sizes: Mapping[str, int]) -> dict[str, list[str]]:
    pieces = [(name, start) for name in files for start in range(0, sizes[name], PIECE_BYTES)]
    digests: dict[str, list[str]] = {name: [] for name in files}
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        hashed = pool.map(lambda piece: _piece_digest(files[piece[0]], piece[1]), pieces)
        for (name, _), digest in zip(pieces, hashed, strict=True):
            digests[name].append(digest)
    return digests


def _piece_digest(path: Path, start: int) -> str:
    digest, left = hashlib.sha256(), PIECE_BYTES
    buffer = memoryview(bytearray(READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while left and (count := file.readinto(buffer[: min(left, READ_BYTES)])):
            digest.update(buffer[:count])  # releases the interpreter's lock
            left -= count
    return digest.hexdigest()
