"""The folder of a set: begun, resumed, or refused before any time is spent."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.dataset.training_set import (
    MANIFEST,
    SPLITS,
    Binding,
    Manifest,
    read_manifest,
    write_manifest,
)
from paceline.synth.app import App
from paceline.synth.collect import CannotWrite
from paceline.synth.sources import Source

BYTES_PER_TOKEN = 4  # an int32 before it is compressed: an estimate on the safe side
PROMPT_SHARE = 4  # tokens written for each token of an answer
BOUND = "what answers are bound to"


def new_manifest(
    app: App,
    sources: Sequence[Source],
    target: dict[str, Any],
    binding: Binding | None,
    user_data: bool,
) -> Manifest:
    about = {
        "description": {**app.given, "size": {app.size.unit: app.size.amount}},
        "sources": [source.as_json() for source in sources],
        "bound": None if binding is None else binding.model_dump(mode="json"),
    }
    return Manifest(target=target, app=about, user_data=user_data)


def check_set(folder: Path, fresh: Manifest, app: App, *, restart: bool = False) -> Manifest:
    """Return the manifest that open_set() will go on with, and leave the folder as it is. Fields of
    the target that `fresh` does not have yet are not compared."""
    manifest = fresh
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest("out", str(folder), "a folder, not a file")
    if (folder / MANIFEST).exists():
        manifest = fresh if restart else _same(folder, read_manifest(folder), fresh)
    elif folder.exists() and any(folder.iterdir()):
        raise InvalidRequest("out", str(folder), "a new or empty folder, or a set to go on with")
    _check_room(folder, manifest, app)
    return manifest


def open_set(folder: Path, fresh: Manifest, app: App, *, restart: bool = False) -> Manifest:
    """Return the manifest to go on with: `fresh`, or the folder's own where it was made alike. A
    larger `size` than it was begun with makes the set grow.

    Raises InvalidRequest (field `out`) for a folder that holds something else, or a set of another
    application or target, and where the disk has no room for what is planned; CannotWrite where
    nothing can be written at all.
    """
    manifest = check_set(folder, fresh, app, restart=restart)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if restart:
            _clear(folder)
        write_manifest(folder, manifest)
    except OSError as error:
        raise CannotWrite(f"cannot write to {folder}: {error.strerror or error}") from error
    return manifest


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made where there is none, for this run alone. The system frees it
    when the process ends in any way. Raises InvalidRequest (field `out`)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest("out", str(folder), f"a folder to write to ({error})") from error
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            expected = "a folder that no other run is writing to"
            raise InvalidRequest("out", str(folder), expected) from None
        yield
    finally:
        os.close(handle)


def _same(folder: Path, manifest: Manifest, fresh: Manifest) -> Manifest:
    for field in ("target", "app", "user_data"):
        before, now = _fixed(getattr(manifest, field)), _fixed(getattr(fresh, field))
        if field == "target":
            # A model keeps its identity under another name.
            now = {name: value for name, value in now.items() if name != "name"}
            before = {name: value for name, value in before.items() if name in now}
        elif field == "app" and BOUND not in before:
            now.pop(BOUND)  # a set that was begun before manifests said it
        if before != now:
            change = _difference(field, before, now)
            expected = f"a set of the same making; {change}. Give another folder, or --restart"
            raise InvalidRequest("out", str(folder), expected)
    return manifest.model_copy(update={"app": fresh.app})


def _fixed(value: Any) -> Any:
    """Return the parts that may not change: all but the size."""
    if not isinstance(value, dict) or "description" not in value:
        return value
    return {
        **{name: part for name, part in value["description"].items() if name != "size"},
        "content of the sources": value["sources"],
        # The description may name a file, and tools compile to what their format is read to be.
        **({BOUND: value["bound"]} if "bound" in value else {}),
    }


def _difference(field: str, before: Any, now: Any) -> str:
    if not isinstance(before, dict):
        return f"this one has {field} {before}, and now it is {now}"
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return f"{field}: {', '.join(names)} changed since it was begun"


def _clear(folder: Path) -> None:
    """Delete a set, and no other files."""
    if (folder / MANIFEST).exists():
        (folder / MANIFEST).unlink()
        for split in SPLITS:
            for pattern in (f"{split}-*.parquet", f"{split}-*.parquet.tmp"):
                for path in folder.glob(pattern):
                    path.unlink()


def _check_room(folder: Path, manifest: Manifest, app: App) -> None:
    missing = app.size.amount - manifest.counts.get(app.size.unit, 0)
    # A row is at most a prompt and an answer; of answer tokens, prompts are a few times as many.
    factor = 2 * app.sampling.max_tokens if app.size.unit == "rows" else PROMPT_SHARE
    free = shutil.disk_usage(_existing(folder)).free
    needed = missing * factor * BYTES_PER_TOKEN
    if needed > free:
        expected = (
            f"a disk with about {needed / 2**20:.0f} MiB free for what is planned; "
            f"this one has {free / 2**20:.0f}"
        )
        raise InvalidRequest("out", str(folder), expected)


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest folder above it that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
