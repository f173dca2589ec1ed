"""Where fetched and converted models lie, and how a folder appears there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """$PACELINE_CACHE, or ~/.cache/paceline."""
    given = os.environ.get("PACELINE_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "paceline"


@contextmanager
def filled_at_once(folder: Path) -> Iterator[Path]:
    """Yields an empty folder to fill; on success it becomes `folder`, on an error it vanishes.

    When another process was faster, its folder stays and this one's work is dropped.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield unfinished
        unfinished.chmod(0o755)  # mkdtemp makes it private to one user
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
