"""One process at a time writes to a folder, and the second is told which one does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.core import InvalidRequest
from paceline.dataset.folder_lock import locked

HOLD = """
import sys, time
from pathlib import Path
from paceline.dataset.folder_lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_with_the_id_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None and first.stdout.readline() == b"held\n"
        with pytest.raises(InvalidRequest) as caught, locked(folder):
            raise AssertionError("the folder was locked twice")
        assert caught.value.field == "out" and str(folder) in str(caught.value)
        assert f"no other run is writing to; process {first.pid} is" in str(caught.value)
        first.kill()
    with locked(folder):  # the system freed it, whatever ended the process
        pass
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(InvalidRequest, match="a folder to write to")
    with refused, locked(tmp_path / "file" / "set"):
        raise AssertionError("a file was taken for a folder")
