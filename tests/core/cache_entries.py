"""What tests of the cache share: an entry, what fills it, and what must be in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.core.checksums import damage

CONTENT = {"weights.bin": b"w" * 100_000, "config.json": b"{}", "more/template.txt": b"hello"}


class Maker:
    """Fills an entry with CONTENT and counts how often that was asked for."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        for name, content in CONTENT.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models" / "m-1.5b"


def check_content(folder: Path) -> None:
    for name, content in CONTENT.items():
        assert (folder / name).read_bytes() == content
    assert damage(folder) is None
    assert os.listdir(folder.parent) == [folder.name]
