"""The fuzzer itself: equal seeds give equal requests, and it finds faults that are planted."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.bench.load.server_process import ServerProcess
from tests.fuzz import bodies, run, storm
from tests.fuzz.bodies import CHAT, COMPLETIONS, case
from tests.fuzz.connection import HttpReply
from tests.fuzz.findings import Findings
from tests.fuzz.server import Start, gauge
from tests.fuzz.values import LARGEST, Pairs, Raw, written

LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="it reads /proc")
BODIES = 60


class Stub(ServerProcess):
    program = (sys.executable, str(Path(__file__).with_name("stub.py")))


def starts(fault: str, folder: Path) -> Start:
    numbers: Iterator[int] = iter(range(100))
    return lambda: Stub([fault], folder / f"{next(numbers)}.log")


def fuzzed(
    fault: str, folder: Path, capsys: pytest.CaptureFixture[str], gap: float = 0.25
) -> tuple[int, str]:
    """The exit code and the report of a run against a stub with a planted fault."""
    arguments = ["--bodies", f"{BODIES}", "--seed", "5", "--out", str(folder / "out")]
    code = run.main([*arguments, "--gap", f"{gap}"], starts(fault, folder))
    return code, capsys.readouterr().out


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests are sent again, and a stub dies at once."""
    for name, value in {"TRIED_DEATHS": 1, "TRIED_GAPS": 1, "SETTLE": 0.3}.items():
        monkeypatch.setattr(run, name, value)
    monkeypatch.setattr(storm, "DEATH_SECONDS", 0.5)


def planted() -> list[int]:
    """The requests that trigger the fault."""
    return [n for n in range(BODIES) if case(5, n).target == "/ui/predict"]


def test_a_request_is_a_function_of_seed_and_index() -> None:
    some = [case(3, index) for index in range(300)]
    assert some == [case(3, index) for index in reversed(range(300))][::-1]
    assert some[:50] != bodies.cases(4, range(50))
    assert len({one.content for one in some if one.method == "POST"}) > 200
    assert {CHAT, COMPLETIONS, "/ui/predict", "/ui/timing"} <= {one.target for one in some}
    assert max(len(one.content) for one in bodies.cases(3, range(1000))) <= LARGEST + 1


def test_most_requests_are_small_and_some_are_large() -> None:
    sizes = sorted(len(one.content) for one in bodies.cases(1, range(2000)))
    assert sizes[1000] < 2_000
    assert sizes[-1] > 200_000


def test_values_that_python_cannot_say_are_written_as_they_are() -> None:
    value = {"a": Raw("1e999"), "b": Pairs([("x", 1), ("x", [Raw("NaN")])]), "c": "\ud800"}
    assert written(value) == '{"a":1e999,"b":{"x":1,"x":[NaN]},"c":"\\ud800"}'
    plain = {"a": [1, 2.5, None, True, "é"], "b": {"c": {}}}
    assert json.loads(written(plain)) == plain


def test_a_gauge_is_added_up_over_its_labels() -> None:
    text = 'x:n{a="1"} 1.5\nx:n{a="2"} 2.0\nx:nn 7\n# HELP x:n 9\n'
    assert gauge(text, "n") == 3.5
    with pytest.raises(ValueError, match="no m"):
        gauge(text, "m")


@LINUX
def test_a_good_server_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = fuzzed("none", tmp_path, capsys, gap=5.0)  # a busy machine may starve the stub
    assert code == 0, told
    assert "FAILED" not in told


@LINUX
def test_a_death_is_found_with_its_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = fuzzed("death", tmp_path, capsys)
    assert code == 1
    assert re.search(r"FAILED: [1-9]\d* deaths of the server", told), told
    assert "exit code -11" in told
    assert any(f"alone it dies of [{index}]" in told for index in planted()), told
    saved = {path.name.split("-")[-1] for path in (tmp_path / "out").glob("death-1-*.http")}
    assert saved & {f"{index}.http" for index in planted()}


@LINUX
@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ("error", "answers were 5xx"),
        pytest.param("stall", "bystanders' gaps over 250 ms", marks=pytest.mark.slow),
        ("hang", "connections ended without a whole answer"),
        ("text", "the reference requests are told another text"),
    ],
)
def test_a_planted_fault_is_found(
    fault: str, failure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = fuzzed(fault, tmp_path, capsys)
    assert code == 1
    assert any("FAILED" in line and failure in line for line in told.splitlines()), told
    if fault in ("error", "hang"):
        assert f": #{planted()[0]} POST /ui/predict" in told


@LINUX
def test_one_request_is_sent_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = planted()[0]
    code = run.main(["--seed", "5", "--only", f"{index}"], starts("error", tmp_path))
    assert code == 1
    assert "-> 500" in capsys.readouterr().out


def test_an_error_in_a_stream_and_a_stream_without_end_are_failures() -> None:
    findings, sent = Findings(), case(1, 1)
    for body in (
        b'data: {}\n\ndata: {"error": {"message": "the engine failed"}}\n\n',
        b'data: {"error": {"message": "too complex", "type": "invalid_request_error"}}\n\n',
        b"data: {}\n\n",
        b"data: {}\n\ndata: [DONE]\n\n",
    ):
        findings.take(sent, reply(body))
    assert findings.errors == [(sent, "in a stream: the engine failed")]
    assert findings.dropped == [(sent, "a stream without its end")]


def reply(body: bytes) -> HttpReply:
    made = HttpReply()
    made.status, made.pieces = 200, [body]
    return made
