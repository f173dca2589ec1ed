"""Files of weights have the mode of a new file."""

from __future__ import annotations

import os

import pytest

from tests.models.dflash.tiny import write_drafter


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_files_are_readable_by_whom_the_umask_lets(tmp_path, mask):
    before = os.umask(mask)
    try:
        folder = write_drafter(tmp_path / "d")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    names = ("config.json", "model.safetensors", "paceline.json")
    assert modes == dict.fromkeys(names, 0o666 & ~mask)
