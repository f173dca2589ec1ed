"""`pip install "git+URL"` installs every file of the package, and a command that runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

PACKAGE = "src/paceline/"


@pytest.mark.docs
@pytest.mark.timeout(600)
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_an_installation_from_git_is_whole(tmp_path: Path) -> None:
    """The page, the shipped drafter and the sources of the kernels come along."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD", PACKAGE],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(tmp_path), f"git+file://{ROOT}"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    needed = [file for file in listed if not file.endswith(".d.ts")]  # types, for `make types`
    missing = [file for file in needed if not (tmp_path / file.removeprefix("src/")).is_file()]
    assert needed and not missing
    done = subprocess.run(
        [sys.executable, "-P", tmp_path / "bin" / "paceline", "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("paceline ")
