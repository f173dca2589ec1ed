"""Packed weights as a file of the cache, which a later start reads instead of packing again.

The file has a page with a header, then the arena as the kernels read it, then the scales of int8
matrices. It is named by all that its bytes depend on. Its checksum is made of sums over blocks,
which take as long as reading the memory does, and find every change of a single word.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from paceline.core import CacheError
from paceline.core.cache import cache_dir, clear_leftovers, explained, save_file, tell_unkept
from paceline.core.checksums import sha256_of_json
from paceline.core.priority import step_back
from paceline.kernels import build, packing
from paceline.kernels.packing import PAGE, Arena, padded, zeroed

log = logging.getLogger(__name__)

FORMAT = 1
LEAST_BYTES = 16 << 20  # smaller networks are packed as quickly as they are looked up
# Of the space that would be free without packed weights: what one file may take, and what all of
# them together take at most where no single one is larger.
FILE_SHARE, TOTAL_SHARE = 0.5, 0.25
BLOCK_WORDS = (1 << 20) // 8
WRITER = "paceline-packed-weights"  # the thread that writes
READERS, READ_BYTES = 4, 32 << 20  # threads that read a file, and what each reads at a time
_used: set[Path] = set()  # by this process: a drafter's file must not push out its target's
_later: ContextVar[list[Callable[[], None]] | None] = ContextVar("_later", default=None)


@contextmanager
def writing_later() -> Iterator[None]:
    """Write what is packed in the context behind it, on a thread: nothing waits for the disk, and
    steps that are timed in the context are alone. Nothing is written where the context fails. The
    process ends once all is written."""
    jobs: list[Callable[[], None]] = []
    token = _later.set(jobs)
    try:
        yield
    finally:
        _later.reset(token)
    if jobs:
        threading.Thread(target=_write_all, args=(jobs,), name=WRITER).start()


def _write_all(jobs: list[Callable[[], None]]) -> None:
    step_back()  # a server may have requests by now
    while jobs:
        jobs.pop()()


class PackedFile:
    """The place of one network's packed weights. `key` is plain JSON: the checkpoint's identity
    (under `weights`) and the recipe; the code that packs is part of every key."""

    def __init__(self, key: Mapping[str, object], size: int) -> None:
        """`size` is the bytes of the arena."""
        self.size = size
        whole = {"format": FORMAT, "size": size, "code": _code_digest(), **key}
        digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
        self._name = f"{digest[:24]}.bin"
        self._source = sha256_of_json(key["weights"])

    @property
    def path(self) -> Path:
        return cache_dir() / "packed" / self._name

    def read(self) -> tuple[Arena, list[Tensor]] | None:
        """Read the file: return the arena, and the scales in their order. None where there is no
        file, and, with a line in the log, where it is damaged."""
        if self.size < LEAST_BYTES:
            return None
        try:
            clear_leftovers(self.path.parent)
            return self._loaded()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, CacheError) as error:
            log.warning(
                "packed weights in %s cannot be used (%s): packing again", self._name, error
            )
            return None

    def _loaded(self) -> tuple[Arena, list[Tensor]]:
        with open(self.path, "rb") as file:
            header = json.loads(file.read(PAGE))
            lengths = [int(length) for length in header["scales"]]
            size = self.size + padded(sum(lengths) * torch.float32.itemsize, PAGE)
            if os.fstat(file.fileno()).st_size != PAGE + size:
                raise ValueError("it has another size than its header says")
            # Read, not mapped: files have no huge pages, and a step over them took 8% longer.
            data = zeroed(size)
            _read_into(data, file.fileno(), PAGE)
        if _checksum(data[: self.size], data[self.size :]) != header["checksum"]:
            raise ValueError("its checksum is wrong")
        with suppress(OSError):
            os.utime(self.path)  # the files that were used last are kept longest
        _used.add(self.path)
        words = data[self.size :].view(torch.float32)[: sum(lengths)]
        return Arena(data=data[: self.size]), list(torch.split(words, lengths))

    def write(self, arena: Arena, scales: Sequence[Tensor]) -> None:
        """Keep packed weights where that can be done; say in the log where it cannot. `arena` must
        not change any more: see writing_later()."""
        if self.size < LEAST_BYTES:
            return
        lengths = [len(tensor) for tensor in scales]
        tail = torch.zeros(padded(sum(lengths) * torch.float32.itemsize, PAGE), dtype=torch.uint8)
        if lengths:
            tail.view(torch.float32)[: sum(lengths)] = torch.cat(list(scales))
        parts = [arena.data[: self.size], tail]
        stated = {"scales": lengths, "checksum": _checksum(*parts), "source": self._source}
        job = partial(self._save, json.dumps(stated).encode(), parts)
        later = _later.get()
        job() if later is None else later.append(job)

    def _save(self, header: bytes, parts: Sequence[Tensor]) -> None:
        try:
            with explained(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                space = DiskSpace(self.path, PAGE + sum(map(len, parts)))
                space.check()
            fill = partial(_fill, header=header, parts=parts)
            save_file(self.path, fill, durable=False)  # the checksum finds what a power cut lost
            _used.add(self.path)
            space.tidy()
        except CacheError as error:
            tell_unkept("packed weights cannot be kept", error)


def remove_packed(weights: object) -> None:
    """Delete what was packed of the checkpoint with the identity `weights`, by every recipe.

    Files without a source, from older versions, stay until their space is needed.
    """
    source = sha256_of_json(weights)
    for path in (cache_dir() / "packed").glob("*.bin"):
        with suppress(OSError, ValueError, AttributeError):
            with open(path, "rb") as file:
                header = json.loads(file.read(PAGE))
            if header.get("source") == source:
                path.unlink()


def _read_into(data: Tensor, descriptor: int, offset: int) -> None:
    """Fill `data` from a file, from `offset` on, with several threads: most of the time goes into
    taking new pages and copying, not into the disk. Raises ValueError where the file ends early."""
    memory = data.numpy().data

    def read(start: int) -> None:
        end = min(start + READ_BYTES, len(memory))
        while start < end:
            count = os.preadv(descriptor, [memory[start:end]], offset + start)
            if not count:
                raise ValueError("it ends early")
            start += count

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, range(0, len(memory), READ_BYTES)))


def _fill(file: BinaryIO, header: bytes, parts: Sequence[Tensor]) -> None:
    file.write(header.ljust(PAGE))
    for part in parts:
        file.write(part.numpy().data)


class DiskSpace:
    """The space for a file of `size` bytes beside the other packed weights."""

    def __init__(self, path: Path, size: int) -> None:
        """Look at the disk as it is before the file is written. Raises OSError."""
        self.path, self.size = path, size
        self._others: list[tuple[float, int, Path]] = []  # time of the last use, bytes
        taken = 0
        for file in path.parent.glob("*.bin"):
            with suppress(FileNotFoundError):  # another process removes files as well
                stat = file.stat()
                taken += stat.st_size
                if file != path and file not in _used:
                    self._others.append((stat.st_mtime, stat.st_size, file))
        self._free = shutil.disk_usage(path.parent).free
        self._space = self._free + taken

    def check(self) -> None:
        """Raise CacheError for a file that would take too much of the space. Remove others where
        the file itself would not fit otherwise."""
        if self.size > self._space * FILE_SHARE:
            folder = self.path.parent
            raise CacheError(
                f"they take {self.size >> 20} MiB, more than half of the {self._space >> 20} MiB "
                f"that are free for them in {folder}; free space there, or set PACELINE_CACHE to "
                "a folder on another disk",
                str(folder),
            )
        self._remove(sum(size for _, size, _ in self._others) - (self.size - self._free))

    def tidy(self) -> None:
        """Remove the files that were used longest ago, once the new one is written."""
        self._remove(self._space * TOTAL_SHARE - self.size)

    def _remove(self, most: float) -> None:
        """Remove the others that were used longest ago, until they take `most` bytes."""
        left = sum(size for _, size, _ in self._others)
        for entry in sorted(self._others):
            if left <= most:
                return
            with suppress(OSError):  # one that cannot be removed harms nobody
                entry[2].unlink(missing_ok=True)
            self._others.remove(entry)
            left -= entry[1]


def _checksum(*parts: Tensor) -> str:
    """Return a digest of the sums over blocks of 64-bit words. Sizes are multiples of PAGE."""
    digest = hashlib.sha256()
    for part in parts:
        words = part.view(torch.int64)
        whole = len(words) // BLOCK_WORDS * BLOCK_WORDS
        sums = [words[:whole].view(-1, BLOCK_WORDS).sum(1), words[whole:].sum()[None]]
        digest.update(torch.cat(sums).numpy().tobytes())
    return digest.hexdigest()


def code_files() -> list[Path]:
    """Return the code that decides about packed bytes, or about the ways to read them."""
    here = Path(__file__).parent
    modules = ("packed_weights", "native_network", "quantized", "tensors")
    native = (file for file in build.NATIVE.iterdir() if file.suffix in {".cpp", ".h"})
    own = [here / f"{module}.py" for module in modules]
    return [*own, Path(packing.__file__), *sorted(native)]


@cache
def _code_digest() -> str:
    digest = hashlib.sha256()
    for file in code_files():
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
