"""The files of a folder of traces: their names, their places, and which of them count."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.dataset.traces.records import FORMAT, KINDS, parquet_module
from paceline.dataset.training_set import write_whole

PART, MERGED, SUFFIX, TEMPORARY = "part-", "merged-", ".parquet", ".tmp"
REPLACES = b"paceline.replaces"  # metadata of a merged file: JSON list of names in its folder
LOCK, SECRET = ".lock", ".session-key"
SECRET_BYTES = 32
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DAY_SECONDS = 86400


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """The files of one kind, day (UTC, as 2026-03-01) and app."""

    kind: str
    day: str
    app: str

    def path(self, folder: Path) -> Path:
        return folder / self.kind / f"day={self.day}" / f"app={slug(self.app)}"


def day_of(seconds: float) -> str:
    """Return the day of seconds since the epoch, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def slug(app: str) -> str:
    """Return the name of an app's folder: its own where that is plain, else with a digest."""
    if PLAIN.fullmatch(app):
        return app
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", app)[:32].lstrip("._-") or "app"
    return f"{plain}-{blake2b(app.encode(), digest_size=4).hexdigest()}"


def new_name(start: str = PART) -> str:
    """Return a name that no other file has; names sort by the time at which they were made."""
    return f"{start}{time.time_ns() // 10**6:013d}-{uuid.uuid4().hex[:16]}{SUFFIX}"


def write_part(place: Path, table: Any, *, name: str = "", replaces: Collection[str] = ()) -> Path:
    """Write a table into the folder `place` under a new name, or under `name`, in one step.

    Raises OSError. A kill leaves the file complete or absent, and at worst a temporary one.
    """
    import pyarrow as arrow

    parquet = parquet_module()
    if replaces:
        stated = {**(table.schema.metadata or {}), REPLACES: json.dumps(sorted(replaces)).encode()}
        table = table.replace_schema_metadata(stated)
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    path = place / (name or new_name(MERGED if replaces else PART))
    place.mkdir(parents=True, exist_ok=True)
    try:
        write_whole(path, sink.getvalue())
    except OSError:
        path.with_name(path.name + TEMPORARY).unlink(missing_ok=True)
        raise
    return path


def read_part(path: Path, columns: Collection[str] | None = None) -> Any:
    """Read a file, or some of its columns. Raises OSError, and InvalidRequest for a file that is
    no Parquet."""
    import pyarrow as arrow

    try:
        # Without threads and reading ahead: pyarrow's pool, once started, may abort the process
        # when that ends.
        file = parquet_module().ParquetFile(path, pre_buffer=False)
        return file.read(columns=None if columns is None else list(columns), use_threads=False)
    except arrow.ArrowInvalid as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: Exception) -> InvalidRequest:
    """Return the refusal of a file that cannot be read; its name stands in full."""
    message = f"traces: {path} is not a complete Parquet file: {error}"
    return InvalidRequest("traces", str(path), "a complete Parquet file", message)


def metadata(path: Path) -> Any:
    """Return the footer of a file. Raises OSError, or InvalidRequest where it has none."""
    import pyarrow as arrow

    try:
        return parquet_module().read_metadata(path)
    except arrow.ArrowInvalid as error:
        raise damaged(path, error) from None


def replaced(path: Path) -> set[str]:
    """Return the names of the files that a file replaces."""
    if not path.name.startswith(MERGED):
        return set()
    stated: Mapping[bytes, bytes] = metadata(path).metadata or {}
    return set(json.loads(stated.get(REPLACES, b"[]")))


def files_of(place: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of a partition's folder that count, and those that others replace."""
    paths = sorted(place.glob(f"*{SUFFIX}"))
    old: set[str] = set()
    for path in paths:
        try:
            old |= replaced(path)
        except FileNotFoundError:
            continue  # deleted since it was listed
    counted = [path for path in paths if path.name not in old]
    return counted, [path for path in paths if path.name in old]


def partitions(
    folder: Path, kind: str, since: float | None = None, until: float | None = None, app: str = ""
) -> Iterator[Path]:
    """Yield the folders of a kind whose day lies between two times, of one app or of all."""
    first = "" if since is None else f"day={day_of(since)}"
    last = "day=~" if until is None else f"day={day_of(until)}"
    for day in sorted((folder / kind).glob("day=*")):
        if first <= day.name <= last:
            yield from sorted(day.glob(f"app={slug(app)}" if app else "app=*"))


def is_traces(folder: Path) -> bool:
    """Return whether a folder holds traces."""
    return any((folder / kind).is_dir() for kind in KINDS)


def check_folder(folder: Path) -> None:
    """Raise InvalidRequest (field `traces`) where a folder holds no traces."""
    if not is_traces(folder):
        expected = f"a folder that `paceline serve --traces` wrote ({FORMAT})"
        raise InvalidRequest("traces", str(folder), expected)


@contextmanager
def only_one(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of those that rewrite files; give False where another process has it."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


class SessionDigest:
    """Makes digests of sessions, keyed with a secret that is kept in the folder: without it nobody
    can tell from a digest whether a guessed session is the one."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where the secret can neither be read nor written."""
        path, beside = folder / SECRET, folder / f"{SECRET}-{uuid.uuid4().hex}{TEMPORARY}"
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(secrets.token_bytes(SECRET_BYTES))
                with contextlib.suppress(FileExistsError):  # another process was faster
                    os.link(beside, path)
            finally:
                beside.unlink()
        self._secret = path.read_bytes()

    def of(self, session: str) -> str:
        text = session.encode("utf-8", "surrogatepass")
        return blake2b(text, key=self._secret, digest_size=8).hexdigest()
