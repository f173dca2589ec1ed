"""Processes that outlive whoever started them: found by their lock, ended by their pipe."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.endpoint import processes
from paceline.endpoint.errors import EndpointError
from paceline.endpoint.processes import LastingProcess, ProcessIdentity, ProcessLaunch
from tests.endpoint.fleet import comes_true, is_gone, kill

TALK = "import time\nwhile True: print('x' * 999, flush=True); time.sleep(0.001)"
SLEEP = "import time; print('here', flush=True); time.sleep(600)"


def launch(program: str) -> ProcessLaunch:
    return ProcessLaunch([sys.executable, "-c", program], grace=2.0)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LastingProcess]:
    made = LastingProcess(tmp_path / "one")
    yield made
    made.stop(10)


def test_it_runs_once_is_found_and_ends(process: LastingProcess) -> None:
    assert not process.is_running() and process.identity() is None
    process.start(launch(SLEEP))
    with pytest.raises(EndpointError, match="one runs already"):
        process.start(launch(SLEEP))
    identity = process.identity()
    again = LastingProcess(process.folder)
    assert again.is_running() and again.identity() == identity
    assert identity is not None and not is_gone(identity.pid)
    assert comes_true(lambda: "here" in again.tail())
    again.stop(10)
    assert not process.is_running() and is_gone(identity.pid)


PARENT = """
import os, signal, sys
from pathlib import Path
from paceline.endpoint.processes import LastingProcess, ProcessLaunch
LastingProcess(Path(sys.argv[1])).start(
    ProcessLaunch([sys.executable, "-c", sys.argv[2]], 2.0, alone=ALONE)
)
os.kill(os.getpid(), signal.SIGKILL)
"""


def orphan(process: LastingProcess, alone: float | None) -> ProcessIdentity:
    """Have a parent start the program and be killed."""
    program = PARENT.replace("ALONE", repr(alone))
    subprocess.run([sys.executable, "-c", program, process.folder, SLEEP], check=False)
    identity = process.identity()
    assert identity is not None and not is_gone(identity.pid)
    return identity


def test_it_outlives_a_killed_parent(process: LastingProcess) -> None:
    identity = orphan(process, None)
    time.sleep(1.0)
    assert not is_gone(identity.pid)


def test_it_ends_when_nobody_keeps_it_any_more(process: LastingProcess) -> None:
    identity = orphan(process, 0.5)
    assert comes_true(lambda: not process.is_running() and is_gone(identity.pid))


def test_the_next_one_keeps_it_and_leaves_it(process: LastingProcess) -> None:
    identity = orphan(process, 2.0)
    process.keep()
    time.sleep(3.0)
    assert process.identity() == identity
    process.leave()
    assert comes_true(lambda: not process.is_running())


def test_its_variables_and_folder_are_those_stated(process: LastingProcess, tmp_path: Path) -> None:
    told = "import os, time; print(os.environ['WORD'], os.getcwd(), flush=True); time.sleep(600)"
    command = [sys.executable, "-c", told]
    process.start(ProcessLaunch(command, 2.0, environment={"WORD": "tide"}, folder=tmp_path))
    assert comes_true(lambda: f"tide {tmp_path}" in process.tail())


def test_what_a_killed_supervisor_leaves_is_killed_and_nobody_else(process: LastingProcess) -> None:
    process.start(launch(SLEEP))
    identity = process.identity()
    assert identity is not None
    with open(f"/proc/{identity.pid}/stat") as file:
        kill(int(file.read().rpartition(")")[2].split()[1]))
    assert comes_true(lambda: not process.is_running())
    process.clear(identity)
    assert comes_true(lambda: is_gone(identity.pid))
    other = subprocess.Popen([sys.executable, "-c", SLEEP], process_group=0)
    process.clear(ProcessIdentity(other.pid, started=1))  # an id that was used again
    process.clear(None)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_missing_program_ends_at_once_and_is_named(process: LastingProcess) -> None:
    process.start(ProcessLaunch(["/nowhere/vllm"], grace=1.0))
    assert comes_true(lambda: not process.is_running())
    assert process.identity() is None and "/nowhere/vllm: No such file" in process.tail()


def test_a_long_log_is_cut_while_the_program_writes(
    process: LastingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOG_BYTES", 100_000)
    monkeypatch.setattr(processes, "KEPT_BYTES", 10_000)
    process.start(launch(TALK))
    log = process.folder / "log"
    assert comes_true(lambda: log.exists() and log.stat().st_size > 100_000)
    process.bound_log()
    assert log.stat().st_size < 100_000
    assert (process.folder / "log.before").stat().st_size == 10_000
    assert comes_true(lambda: log.stat().st_size > 2_000)  # it goes on at the start of the file
    assert log.read_bytes()[:1] == b"x"
