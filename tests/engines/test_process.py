"""Engines as supervised processes: progress, readiness, and an end that leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.bench.load.server_process import free_port
from paceline.core import InvalidRequest
from paceline.engines.client import EngineError
from paceline.engines.kind import LaunchPlan, Program
from paceline.engines.process import EngineProcess
from paceline.engines.vllm import Vllm

FAKE = str(Path(__file__).with_name("fake_engine.py"))
PATIENCE = 20.0


def plan(*words: str, port: int | None = None) -> LaunchPlan:
    program = Program((sys.executable, FAKE, *words, "serve"), "0.32.0")
    return LaunchPlan("target", port=port or free_port(), program=program)


def comes_true(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Log:
    """The lines of an engine, and the child that the first of them names."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    @property
    def child(self) -> int:
        assert comes_true(lambda: bool(self.lines))
        return int(self.lines[0].split()[1])


def test_an_engine_starts_tells_its_progress_and_ends_with_all_of_it() -> None:
    log, progress = Log(), list[str]()
    shards = "Loading safetensors checkpoint shards:  50% Completed | 1/2"
    with EngineProcess(
        Vllm(), plan("--say", shards), on_line=log, on_progress=progress.append
    ) as engine:
        client = engine.wait_ready(PATIENCE)
        assert client.model == "m" and client.is_healthy()
        assert engine.exit_code is None
        assert progress == ["weights: 50%"]
        assert engine.drain(client, PATIENCE)
    assert engine.exit_code == 0
    assert is_gone(engine.pid) and is_gone(log.child)
    assert not client.is_healthy()


def test_an_engine_that_ends_while_it_loads_says_why() -> None:
    log = Log()
    warning = "WARNING fd limit errors like OSError: [Errno 24] Too many open files"
    words = ("--say", warning, "--fail", "ValueError: no such tensor: head")
    engine = EngineProcess(Vllm(), plan(*words), on_line=log)
    with pytest.raises(EngineError) as error:
        engine.wait_ready(PATIENCE)
    text = str(error.value)
    assert "ended with exit code 3" in text
    assert "First error in its log: ValueError: no such tensor: head" in text
    assert "RuntimeError: start failed" in text  # the end of the log
    assert is_gone(log.child)


def test_a_killed_engine_leaves_no_child() -> None:
    log = Log()
    engine = EngineProcess(Vllm(), plan(), on_line=log)
    engine.wait_ready(PATIENCE)
    os.kill(engine.pid, signal.SIGKILL)
    assert comes_true(lambda: engine.exit_code is not None)
    with pytest.raises(EngineError, match=r"exit code 137 \(SIGKILL\)"):
        engine.check()
    assert is_gone(log.child)


def test_a_killed_supervisor_takes_the_engine_along() -> None:
    engine = EngineProcess(Vllm(), plan())
    engine.wait_ready(PATIENCE)
    with open(f"/proc/{engine.pid}/stat") as file:
        supervisor = int(file.read().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    assert comes_true(lambda: engine.exit_code == 128 + signal.SIGKILL)
    assert comes_true(lambda: is_gone(engine.pid))


def test_a_supervisor_that_gets_sigterm_ends_the_engine() -> None:
    engine = EngineProcess(Vllm(), plan())
    engine.wait_ready(PATIENCE)
    with open(f"/proc/{engine.pid}/stat") as file:
        supervisor = int(file.read().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGTERM)
    assert comes_true(lambda: engine.exit_code == 0)
    assert is_gone(engine.pid)


def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    log = Log()
    engine = EngineProcess(Vllm(), plan("--stubborn"), on_line=log, grace=0.5)
    engine.wait_ready(PATIENCE)
    started = time.monotonic()
    assert engine.stop() == 128 + signal.SIGKILL
    assert time.monotonic() - started < 5
    assert "SIGTERM ignored" in log.lines
    assert is_gone(log.child)


PARENT = """
import sys, time
from paceline.engines.kind import LaunchPlan, Program
from paceline.engines.process import EngineProcess
from paceline.engines.vllm import Vllm
program = Program((sys.executable, sys.argv[1]), "0.32.0")
log = []
engine = EngineProcess(
    Vllm(), LaunchPlan("t", port=int(sys.argv[2]), program=program), on_line=log.append
)
engine.wait_ready(20)
print(engine.pid, log[0].split()[1], flush=True)
time.sleep(600)
"""


def test_an_engine_ends_with_its_killed_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, FAKE, str(free_port())], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2 and not any(map(is_gone, pids))
        parent.kill()
    assert comes_true(lambda: all(map(is_gone, pids)))


def test_a_taken_port_is_refused_before_anything_starts() -> None:
    with EngineProcess(Vllm(), plan()) as engine:
        engine.wait_ready(PATIENCE)
        port = int(engine.url.rpartition(":")[2])
        with pytest.raises(InvalidRequest, match=r"port: got .*a free port"):
            EngineProcess(Vllm(), plan(port=port))


def test_a_missing_program_is_named() -> None:
    absent = LaunchPlan("target", port=free_port(), program=Program(("/nowhere/vllm",), "0.32.0"))
    engine = EngineProcess(Vllm(), absent)
    with pytest.raises(EngineError, match="/nowhere/vllm: No such file"):
        engine.wait_ready(PATIENCE)
