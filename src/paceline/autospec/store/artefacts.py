"""The files of versions: each folder is kept under its checksum, whole or not at all.

`artefacts/CHECKSUM/` has the files of one folder and their manifest. A folder that several versions
share is there once. It is written beside, under a hidden name, synced and renamed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.autospec.store.database import StoreError
from paceline.core import InvalidRequest
from paceline.core.cache import FULL, UNFINISHED, sync
from paceline.core.checksums import damage, files_of, folder_checksum, write_manifest

FOLDER, LOCK = "artefacts", ".lock"
READ_ONLY = 0o444  # a version never changes, so nobody shall write to its files by mistake


class ArtefactDamaged(StoreError):
    """The files of a version are not those that were put into the store."""


class Artefacts:
    """The folders of artefacts in a store. `changing` must be held while any is added."""

    def __init__(self, store: Path) -> None:
        self.store, self.folder = store, store / FOLDER

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock under which folders are added and removed, from the copy until a version
        refers to it. The lock ends with the process that holds it."""
        with self._worded():
            self.folder.mkdir(exist_ok=True)
            descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)

    def path(self, checksum: str) -> Path:
        """Return the folder of a checksum."""
        return self.folder / checksum

    def keep(self, source: Path) -> str:
        """Copy a folder into the store, unless it is there. Return its checksum.

        Raises StoreError where it cannot be read or written, and leaves nothing behind then.
        """
        if not files_of(source):
            raise InvalidRequest("spec", str(source), "a folder with files in it")
        with self._worded():
            checksum = folder_checksum(source)
            place = self.path(checksum)
            if place.is_dir() and folder_checksum(place) == checksum:
                return checksum
            unfinished = self.folder / f".{checksum}{UNFINISHED}"
            shutil.rmtree(unfinished, ignore_errors=True)
            try:
                self._copy(source, unfinished)
                if folder_checksum(unfinished) != checksum:
                    raise StoreError(f"{source} has changed while it was copied; add it once more")
                self._settle(unfinished, place)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
        return checksum

    def check(self, name: str, checksum: str) -> None:
        """Raise ArtefactDamaged, naming the version, where the files are not those that were
        kept."""
        place = self.path(checksum)
        try:
            intact = place.is_dir() and folder_checksum(place) == checksum
        except OSError:
            intact = False
        if not intact:
            reason = damage(place) if place.is_dir() else "it is gone"
            reason = reason or "its manifest was written anew for other files"
            raise ArtefactDamaged(
                f"version {name}: its files in {place} are not those that were added ({reason}); "
                "add it once more under another name"
            )

    def clear(self, needed: Collection[str]) -> None:
        """Remove what killed processes left behind: folders that no version refers to."""
        for path in self.folder.iterdir():
            if path.is_dir() and path.name not in needed:
                shutil.rmtree(path, ignore_errors=True)

    def _copy(self, source: Path, unfinished: Path) -> None:
        for name, path in files_of(source).items():
            copy = unfinished / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        write_manifest(unfinished)
        for path in (*files_of(unfinished).values(), *unfinished.glob("*.json")):
            path.chmod(READ_ONLY)

    def _settle(self, unfinished: Path, place: Path) -> None:
        for path in sorted(unfinished.rglob("*"), reverse=True):  # files before their folders
            sync(path)
        sync(unfinished)
        shutil.rmtree(place, ignore_errors=True)  # damaged, or nobody would have copied
        os.rename(unfinished, place)
        sync(self.folder)

    @contextmanager
    def _worded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            advice = "free space there; " if error.errno in FULL else ""
            raise StoreError(
                f"the store {self.store} cannot keep files ({reason}); {advice}the store is as it "
                "was before"
            ) from error
