"""The cache on disk: an entry is there whole and verified, or it is made again.

The cache has folders (models, gguf, kernels, packed, costs, quality, digests) of entries. An entry
is a folder with a manifest of checksums, or a file with its own. It is written under a hidden name
ending in UNFINISHED, synced and renamed, by whoever holds its lock, a file in `locks/`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from paceline.core.checksums import damage, sha256_of_json, write_manifest
from paceline.core.errors import CacheError

log = logging.getLogger(__name__)

UNFINISHED = ".unfinished"
CHECKSUM = "sha256"  # key of the checksum in a JSON entry
# Versions before this one held no lock while they wrote, and used these names: of a model, of a
# kernel build, of a cost table. What they left is cleared at this age.
OLD_LEFTOVER = re.compile(r"\..+\.[a-z0-9_]{8}|tmp[a-z0-9_]{8}|[0-9a-f]{24}\.\d+")
OLD_LEFTOVER_SECONDS = 24 * 3600.0
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
POLL_SECONDS = 0.1
REMEMBERED_SECONDS = 7 * 24 * 3600.0
LEAST_REMEMBERED = 16 << 20  # bytes; smaller files are read as quickly as what is known of them
PATIENCE_SECONDS = 3.0  # a wait that takes longer is told to the user, once
_told: set[str] = set()  # cache folders that could not be used
# What flock() says on network file systems that are mounted without locks.
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


def cache_dir() -> Path:
    """Return $PACELINE_CACHE, or ~/.cache/paceline. Raises CacheError without a home folder."""
    given = os.environ.get("PACELINE_CACHE")
    try:
        return Path(given).expanduser() if given else Path.home() / ".cache" / "paceline"
    except RuntimeError as error:
        raise CacheError(f"no cache folder ({error}); set PACELINE_CACHE to a folder") from error


def cached_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return the entry `folder` once its files agree with their checksums.

    A missing or damaged entry is made: `fill` writes its files into the empty folder that it gets.
    Of several processes that need the entry, one makes it and the others wait. What `fill` raises
    comes through, but an OSError becomes a CacheError, as does one of reading or writing the cache.
    """
    with explained(folder):
        clear_leftovers(folder.parent)
        if folder.is_dir() and remembered(folder, _files_of(folder), lambda: _sound(folder)):
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _held_lock(_lock_of(folder), f"making {folder}") as exclusive:
            if exclusive:
                for path in folder.parent.iterdir():  # of a process killed while we waited
                    if path.name.startswith(f".{folder.name}.") and path.suffix == UNFINISHED:
                        _remove(path)
            problem = damage(folder)  # another process may have made the entry meanwhile
            if problem is None:
                return folder
            if folder.exists():
                log.warning("cache entry %s is damaged (%s): making it again", folder, problem)
            _make(folder, fill)
    return folder


def remembered(place: Path, files: Sequence[Path], compute: Callable[[], str]) -> str:
    """Return what `compute` finds in the files of `place`, from its last time where that is less
    than a week ago and no file was touched since. Nothing (an empty text) is not remembered.

    For checksums of large files, which take seconds. A disk that loses bits by itself touches no
    file: hence the week.
    """
    stamps = {str(file): stamp(file) for file in files}
    if sum(size for size, *_ in stamps.values()) < LEAST_REMEMBERED:
        return compute()
    key = hashlib.sha256(os.fsencode(place.resolve())).hexdigest()
    entry = cache_dir() / "digests" / f"{key[:24]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        saved = load_json(entry)
        if saved["files"] == stamps and 0 <= time.time() - saved["at"] < REMEMBERED_SECONDS:
            return str(saved["found"])
    found = compute()
    if found:
        with suppress(CacheError):
            save_json(entry, {"files": stamps, "at": time.time(), "found": found})
    return found


def stamp(file: Path) -> list[int]:
    """Return a file's size, mtime, ctime and inode: any write changes one of them. Programs can set
    the mtime, but not the ctime."""
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _sound(folder: Path) -> str:
    """Return "sound" if the entry's files agree with their checksums, else an empty text."""
    return "sound" if damage(folder) is None else ""


def load_json(path: Path) -> dict[str, Any]:
    """Return the JSON entry `path`. Raises OSError, or ValueError where it is damaged."""
    clear_leftovers(path.parent)
    saved = json.loads(path.read_text("utf-8"))
    if not isinstance(saved, dict):
        raise ValueError("it is not a JSON object")
    checksum = saved.pop(CHECKSUM, None)
    if checksum != sha256_of_json(saved):
        raise ValueError("its checksum is missing or wrong")
    return saved


def save_json(path: Path, value: Mapping[str, object]) -> None:
    """Write the JSON entry `path`. Raises CacheError."""
    text = json.dumps({CHECKSUM: sha256_of_json(value), **value}, indent=1) + "\n"
    save_file(path, lambda file: file.write(text.encode()))


def save_file(path: Path, fill: Callable[[BinaryIO], object], *, durable: bool = True) -> None:
    """Write the entry `path`, whose bytes `fill` writes. Raises CacheError, and leaves nothing
    behind then.

    Without `durable` a power cut may leave the entry damaged: for entries with a checksum of their
    own, which are too large to wait for the disk.
    """
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _held_lock(_lock_of(path), f"writing {path}"):
            descriptor, name = tempfile.mkstemp(UNFINISHED, f".{path.name}.", path.parent)
            try:
                with open(descriptor, "wb") as file:
                    fill(file)
                    os.fchmod(descriptor, 0o644)  # mkstemp makes it private to one user
                if durable:
                    sync(Path(name))
                os.rename(name, path)
                if durable:
                    sync(path.parent)
            finally:
                _remove(Path(name))


def clear_leftovers(folder: Path) -> None:
    """Remove what killed processes left in a folder of the cache; what is being written stays.

    An entry that cannot be cleared, as in a read-only cache, stays too: it harms nobody.
    """
    try:
        paths = list(folder.iterdir())
    except OSError:
        return
    for path in paths:
        with suppress(OSError):
            _clear(path)


def _clear(path: Path) -> None:
    """Remove `path` if a process left it unfinished and that process is gone."""
    old = time.time() - OLD_LEFTOVER_SECONDS
    if path.name.startswith(".") and path.name.endswith(UNFINISHED):
        entry = path.with_name(path.name[1:].rsplit(".", 2)[0])
        with _free_lock(_lock_of(entry)) as free:
            if free:
                _remove(path)
    elif OLD_LEFTOVER.fullmatch(path.name) and path.lstat().st_mtime < old:
        _remove(path)


def _make(folder: Path, fill: Callable[[Path], None]) -> None:
    unfinished = Path(tempfile.mkdtemp(UNFINISHED, f".{folder.name}.", folder.parent))
    try:
        fill(unfinished)
        unfinished.chmod(0o755)  # mkdtemp makes it private to one user
        write_manifest(unfinished)
        for path in sorted(unfinished.rglob("*"), reverse=True):  # files before their folders
            sync(path)
        sync(unfinished)
        replaced = folder.with_name(f".{folder.name}.{os.getpid()}{UNFINISHED}")
        if os.path.lexists(folder):
            os.rename(folder, replaced)
        os.rename(unfinished, folder)
        sync(folder.parent)
        _remove(replaced)
    finally:
        _remove(unfinished)


def _lock_of(entry: Path) -> Path:
    return entry.parent.parent / "locks" / f"{entry.parent.name}-{entry.name}.lock"


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have the disk store a file's bytes, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno == errno.EINVAL):  # some network file systems
            raise
    finally:
        os.close(descriptor)


def tell_unkept(consequence: str, error: CacheError) -> None:
    """Warn that something cannot be kept; further warnings of a cache folder have level `debug`."""
    level = logging.DEBUG if error.folder in _told else logging.WARNING
    _told.add(error.folder)
    log.log(level, "%s, and starts take longer: %s", consequence, error)


@contextmanager
def explained(entry: Path) -> Iterator[None]:
    """Turn an OSError into a CacheError that names the cache folder and what to do."""
    try:
        yield
    except OSError as error:
        raise unusable(entry.parent.parent, error) from error


def unusable(folder: Path, error: OSError) -> CacheError:
    """Return what is said of a cache folder that an error kept from being used, and what to do."""
    reason = error.strerror or str(error)
    advice = "set PACELINE_CACHE to a folder that this user can read and write"
    if error.errno in FULL:
        advice = "free space there, or set PACELINE_CACHE to a folder on another disk"
    return CacheError(f"the cache folder {folder} cannot be used ({reason}); {advice}", str(folder))


# -- locks, which end with the process that holds them -------------------------------------------


@contextmanager
def _held_lock(path: Path, work: str) -> Iterator[bool]:
    """Wait for the lock of the file `path` and hold it; `work` says what the holder does.

    Yields False where the file system has no locks, so that others may do the same work. Raises
    OSError where the file cannot be made. The file stays: it is empty or holds a process id.
    """
    with _opened(path) as descriptor:
        exclusive = _wait(descriptor, path, work)
        if exclusive:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield exclusive


@contextmanager
def _free_lock(path: Path) -> Iterator[bool]:
    """Hold the lock of the file `path` if nobody else does; yield whether that is so.

    Raises OSError where the file cannot be made or the file system has no locks.
    """
    with _opened(path) as descriptor:
        yield _take(descriptor)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _wait(descriptor: int, path: Path, work: str) -> bool:
    started, told = time.monotonic(), False
    try:
        while not _take(descriptor):
            if not told and time.monotonic() - started > PATIENCE_SECONDS:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace") or "?"
                log.warning("waiting for process %s, which is %s (lock: %s)", holder, work, path)
                told = True
            time.sleep(POLL_SECONDS)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
