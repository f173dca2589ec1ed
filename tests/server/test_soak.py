"""The load test, for seconds in place of half an hour; and that it notices what it looks for."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="it reads /proc")
def test_nothing_fails_leaks_or_is_lost_under_load() -> None:
    command = [sys.executable, str(BENCHMARKS / "soak.py"), "--minutes", "0.2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for seen in ("repeated, the same", "hung up", "refused, as it should be", "429", "p99",
                 "hostile, ", "waits of a bystander"):  # fmt: skip
        assert seen in done.stdout


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The load test's modules, which import each other as scripts do."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("soak", "soak_answers", "soak_hostile", "soak_http", "soak_traffic", "soak_watch")
    return SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def event(**changes: Any) -> str:
    whole = {"id": "a", "choices": [], "usage": None, **changes}
    return f"data: {json.dumps(whole)}\n\n"


def said(text: str, reason: str | None = None) -> str:
    return event(choices=[{"index": 0, "text": text, "finish_reason": reason}])


USAGE = event(usage={"completion_tokens": 3}, metrics={"seed": 1})
GOOD = [said("red"), said("", "stop"), USAGE, "data: [DONE]\n\n"]


def judged(scripts: SimpleNamespace, body: str) -> Any:
    reply = scripts.soak_http.Reply()
    reply.take(body.encode())
    fits = {"red": True}.get
    return scripts.soak_answers.streamed(
        scripts.soak_traffic.Ask("/v1/completions", {"max_tokens": 3, "stream": True}, fits), reply
    )


def test_a_good_stream_passes(scripts: SimpleNamespace) -> None:
    answer = judged(scripts, "".join(GOOD))
    assert (answer.texts, answer.reasons, answer.tokens) == (["red"], ["stop"], 3)


def test_a_streamed_call_is_judged_by_its_arguments(scripts: SimpleNamespace) -> None:
    def piece(text: str, reason: str | None = None) -> str:
        calls = [{"index": 0, "function": {"arguments": text}}]
        delta = {"content": None, "tool_calls": calls}
        return event(choices=[{"index": 0, "delta": delta, "finish_reason": reason}])

    called = [piece("re"), piece("d", "tool_calls"), *GOOD[2:]]
    assert judged(scripts, "".join(called)).texts == ["red"]
    with pytest.raises(scripts.soak_answers.Problem, match="conform"):
        judged(scripts, "".join([piece("blue"), *called[1:]]))


@pytest.mark.parametrize(
    "body",
    [
        GOOD[:-1],  # cut
        [*GOOD[:-1], "data: [DO"],
        [GOOD[0], *GOOD[2:]],  # no end
        [*GOOD[:2], said("more"), *GOOD[2:]],
        [said("blue"), *GOOD[1:]],  # does not conform
        [said("red", "abort"), *GOOD[2:]],
        [GOOD[0], 'data: {"error": {"message": "the engine failed"}}\n\n', *GOOD[1:]],
        [GOOD[0], "event: x\n\n", *GOOD[1:]],
        [*GOOD[:2], event(usage={"completion_tokens": 4}, metrics={}), GOOD[3]],  # too many
    ],
)
def test_a_broken_stream_does_not(scripts: SimpleNamespace, body: list[str]) -> None:
    with pytest.raises(scripts.soak_answers.Problem):
        judged(scripts, "".join(body))


def result(scripts: SimpleNamespace, leak: float = 0.0, usage: float = 0.0) -> Any:
    gauges = {"num_requests_running": 0.0, "num_requests_waiting": 0.0,
              "kv_cache_usage_perc": usage}  # fmt: skip
    made = scripts.soak.Result(before=10, after=10)
    # 90 s of warm-up, which may take memory, then so many MiB a minute
    made.samples = [
        scripts.soak_watch.Sample(s, min(s, 90) + leak * s / 60, 10, gauges) for s in range(300)
    ]
    made.idle = made.samples[-1]
    made.tally.ttft = made.tally.tpot = [0.1, 0.2]
    made.noticed.streams, made.noticed.longest = 3, {"stream": 0.3, "one token": 9.0}
    made.drain = scripts.soak.Drain(20, 20, 1.0, exited=True)
    made.drain.newcomers["503"] = 1
    return made


def test_the_verdict_names_what_is_wrong(scripts: SimpleNamespace) -> None:
    def failures(made: Any) -> list[str]:
        scripts.soak.judge(made)
        return made.failures

    assert failures(result(scripts)) == []
    assert "memory grows: 33" in failures(result(scripts, leak=10))[0]
    assert "10.0% of the KV blocks" in failures(result(scripts, usage=0.1))[0]
    files, lost, code, error, told, stall, starved = (result(scripts) for _ in range(7))
    stall.noticed.longest["health"] = 10.3
    assert failures(stall) == ["a bystander waited 10.3 s for its health, 2.5 are allowed"]
    starved.noticed.streams = 0
    assert failures(starved) == ["the bystander could not read a stream"]
    files.after = 20
    assert failures(files) == ["10 more files are open than before"]
    lost.drain.finished = 19
    assert failures(lost) == ["the drain lost 1 of 20 requests"]
    code.drain.exited = False
    assert failures(code) == ["SIGTERM did not end the server with 0 in time"]
    error.tally.problem("good", ValueError("500"))
    assert failures(error) == ["1 errors that are not the client's"]
    told.drain.newcomers["200"] = 1
    assert "{'200'}" in failures(told)[0]


def test_hostile_requests_are_as_large_as_the_server_reads(scripts: SimpleNamespace) -> None:
    hostile = scripts.soak_hostile.Hostile("http://127.0.0.1:1", "tiny")
    sizes = {name: len(content) for name, (_, content) in hostile._contents.items()}
    bound = scripts.soak_traffic.LONGEST_BODY
    assert all(size <= bound for size in sizes.values()), sizes
    assert sizes["wrong_list"] > 0.9 * bound
    assert all(json.loads(content)["model"] == "tiny" for _, content in hostile._contents.values())
