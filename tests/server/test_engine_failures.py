"""What clients and the process see when a step fails, the model says NaN, or the engine dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline.engine.async_engine import AsyncEngine
from tests.engine.test_faults import POISON, poisoned

from .conftest import listening

ROOT = Path(__file__).parents[2]
TEXT: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with (
        listening(AsyncEngine(poisoned("float32"))) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=30) as client,
    ):
        yield client


@pytest.mark.parametrize("options", [{}, {"logprobs": 2}, {"temperature": 1, "top_p": 0.5}])
def test_a_model_that_says_nan_is_a_500_that_says_so(
    http: httpx.Client, options: dict[str, Any]
) -> None:
    good = http.post("/v1/completions", json={**TEXT, "prompt": [5, 6], **options, "seed": 1})
    bad = http.post("/v1/completions", json={**TEXT, "prompt": [5, POISON], **options})
    assert bad.status_code == 500
    assert bad.json()["error"]["code"] == "model_not_finite"
    assert "NaN or infinity" in bad.json()["error"]["message"]
    again = http.post("/v1/completions", json={**TEXT, "prompt": [5, 6], **options, "seed": 1})
    assert again.json()["choices"] == good.json()["choices"]
    assert http.get("/health").status_code == 200
    assert 'finished_reason="error"' in http.get("/metrics").text


def test_a_stream_that_meets_nan_says_so_in_an_event(http: httpx.Client) -> None:
    body = {**TEXT, "prompt": [5, POISON], "stream": True}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200
    assert "model_not_finite" in answer.text and "[DONE]" not in answer.text


DYING = """
import sys
import torch
from paceline.engine.async_engine import AsyncEngine
from paceline.server.run import serve
from paceline.server.settings import ServerSettings
from tests.engine.test_async_engine import tiny_engine
from paceline.cli import main
import paceline.cli.serve as command

engine = tiny_engine(max_num_seqs=1)
network, calls = engine.runner.network, 0
forward = network.forward

def dying(*args):
    global calls
    calls += 1
    if calls > 40:
        raise RuntimeError("the memory is gone")
    return forward(*args)

network.forward = dying
try:
    serve(AsyncEngine(engine), ServerSettings(port=0))
except Exception as error:
    print(f"ended: {error}", flush=True)
    sys.exit(1)
"""


@contextmanager
def dying_server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [sys.executable, "-c", DYING],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[-1]
        finally:
            process.kill()


def test_a_dead_engine_ends_the_process_after_all_are_answered() -> None:
    with dying_server() as (process, url):
        body = {**TEXT, "prompt": [5, 6], "max_tokens": 400}
        with httpx.Client(trust_env=False, timeout=30) as http:
            requests = [
                http.build_request("POST", f"{url}/completions", json={**body, "stream": streamed})
                for streamed in (True, False)
            ]
            first = http.send(requests[0], stream=True)
            lines = first.iter_lines()
            next(lines)
            waiting = http.send(requests[1])  # queued behind it: answered by the engine's death
            assert waiting.status_code in (500, 503), waiting.text
            assert "error" in [line for line in lines if line][-1]
        assert process.wait(20) == 1
        assert process.stdout is not None
        assert "the memory is gone" in process.stdout.read()


def test_a_signal_to_a_server_whose_engine_is_dead_does_not_end_it_with_0() -> None:
    with dying_server() as (process, url), httpx.Client(trust_env=False, timeout=30) as http:
        body = {**TEXT, "prompt": [5, 6], "max_tokens": 400}
        assert http.post(f"{url}/completions", json=body).status_code == 500
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 1
