"""The folder of a set: begun, gone on with, or refused before any time is spent."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.dataset.binding import Binding
from paceline.dataset.training_set import MANIFEST, SPLITS, Manifest, read_manifest, write_manifest
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
        "bound": None if binding is None else binding.as_json(),
    }
    return Manifest(target=target, app=about, user_data=user_data)


def check_set(folder: Path, fresh: Manifest, app: App, *, restart: bool = False) -> Manifest:
    """The manifest that open_set will go on with; nothing in the folder is touched. What `fresh`
    does not say of its target yet is not compared."""
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
    """The manifest to go on with: `fresh`, or the folder's own where it is of the same making. A
    larger `size` than it was begun with only makes it grow.

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
    """Only one run writes to a folder, which is made where there is none; the system lets go when
    the run ends, however it ends. Raises InvalidRequest (field `out`)."""
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


def _same(folder: Path, found: Manifest, fresh: Manifest) -> Manifest:
    for field in ("target", "app", "user_data"):
        there, now = _fixed(getattr(found, field)), _fixed(getattr(fresh, field))
        if field == "target":
            # A model keeps its identity under another name.
            now = {name: value for name, value in now.items() if name != "name"}
            there = {name: value for name, value in there.items() if name in now}
        elif field == "app" and BOUND not in there:
            now.pop(BOUND)  # a set that was begun before manifests said it
        if there != now:
            what = _difference(field, there, now)
            expected = f"a set of the same making; {what}. Give another folder, or --restart"
            raise InvalidRequest("out", str(folder), expected)
    return replace(found, app=fresh.app)


def _fixed(value: Any) -> Any:
    """What may not change: all but the size."""
    if not isinstance(value, dict) or "description" not in value:
        return value
    return {
        **{name: part for name, part in value["description"].items() if name != "size"},
        "content of the sources": value["sources"],
        # The description may name a file, and tools compile to what their format is read to be.
        **({BOUND: value["bound"]} if "bound" in value else {}),
    }


def _difference(field: str, there: Any, now: Any) -> str:
    if not isinstance(there, dict):
        return f"this one has {field} {there}, and now it is {now}"
    names = [name for name in {**there, **now} if there.get(name) != now.get(name)]
    return f"{field}: {', '.join(names)} changed since it was begun"


def _clear(folder: Path) -> None:
    """Deletes a set, and nothing that is none."""
    if (folder / MANIFEST).exists():
        (folder / MANIFEST).unlink()
        for split in SPLITS:
            for pattern in (f"{split}-*.parquet", f"{split}-*.parquet.tmp"):
                for path in folder.glob(pattern):
                    path.unlink()


def _check_room(folder: Path, manifest: Manifest, app: App) -> None:
    missing = app.size.amount - manifest.counts.get(app.size.unit, 0)
    # A row is at most a prompt and an answer; of answer tokens, prompts are a few times as many.
    each = 2 * (app.params.max_tokens or 0) if app.size.unit == "rows" else PROMPT_SHARE
    tokens = missing * each
    needed, free = int(tokens * BYTES_PER_TOKEN), shutil.disk_usage(_there(folder)).free
    if needed > free:
        expected = (
            f"a disk with about {needed / 2**20:.0f} MiB free for what is planned; "
            f"this one has {free / 2**20:.0f}"
        )
        raise InvalidRequest("out", str(folder), expected)


def _there(folder: Path) -> Path:
    """The folder, or what is there of the way to it."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
