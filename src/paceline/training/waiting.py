"""A run waits for features that another process writes, and says what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from paceline.core import InvalidRequest
from paceline.training.seen import Seen

FIELD = "features_folder"
SUFFIX = ".safetensors"
POLL_SECONDS = 0.1
NEWS_SECONDS = 2.0  # between two looks for anything new in the folder
TELL_SECONDS = 30.0  # between two lines that say what a run waits for


class Waiting:
    """Waits for files of a folder of features. When nothing new came there for `minutes`, the
    writer is taken to be gone; `show` gets a line when a wait begins, and now and then."""

    def __init__(self, folder: Path, minutes: float, show: Callable[[str], None]) -> None:
        self._folder, self._minutes, self._show = folder, minutes, show

    def until(self, path: Path, tokens: int, load: Callable[[], Seen | None]) -> Seen:
        """Wait until `path` is there and `load` returns what it holds: the features of a text of so
        many tokens. A damaged file is waited for as one that is missing.

        Raises InvalidRequest (field `features_folder`), with the file, when the writer is gone.
        """
        tried: tuple[int, ...] | None = None
        latest, news = self._latest(), time.monotonic()
        looked, told = news, news - TELL_SECONDS
        while True:
            stamp = stamp_of(path)
            if stamp not in (None, tried):
                tried = stamp
                if (seen := load()) is not None:
                    return seen
            time.sleep(POLL_SECONDS)
            now = time.monotonic()
            if now - looked < min(NEWS_SECONDS, 60 * self._minutes):
                continue
            looked = now
            if (newest := self._latest()) != latest:
                latest, news = newest, now
            if now - news > 60 * self._minutes:
                raise self._gone(path, tokens)
            if now - told > TELL_SECONDS:
                told = now
                self._show(self._line(path, tokens, now - news))

    def _line(self, path: Path, tokens: int, quiet: float) -> str:
        count = sum(1 for _ in self._folder.glob(f"*/*{SUFFIX}"))
        return (
            f"waiting for {path}, the features of a text of {tokens} tokens: {count} texts are "
            f"there, nothing new for {quiet:.0f} s; "
            f"the run gives up after {self._minutes:g} minutes"
        )

    def _gone(self, path: Path, tokens: int) -> InvalidRequest:
        expected = (
            f"{path.relative_to(self._folder)} in it, the features of a text of {tokens} tokens, "
            f"or a writer at work: nothing new came for {self._minutes:g} minutes. Give the "
            "writer's command again, the one of this run with features_only in place of "
            "features_wait (and without features_folder_gb), and then this one: both go on from "
            "where they were"
        )
        return InvalidRequest(FIELD, str(self._folder), expected)

    def _latest(self) -> int:
        """Return the time of the last file that came, which is when its folder changed."""
        folders = [self._folder, *(path for path in self._folder.iterdir() if path.is_dir())]
        return max(folder.stat().st_mtime_ns for folder in folders)


def stamp_of(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is replaced; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
