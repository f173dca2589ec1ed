"""How many connections a server holds, whose they are, and what is pipelined on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from paceline.core import InvalidRequest
from paceline.server.connection import MAX_PIPELINED
from paceline.server.settings import ServerSettings
from paceline.server.sockets import connection_bound

from .conftest import LONG_STREAM, TEXT, eventually, healthy, listening
from .fake import FakeAsyncEngine
from .raw import RawClient

ROOT = Path(__file__).parents[2]


def test_half_requests_lock_nobody_out() -> None:
    engine = FakeAsyncEngine(step=0.01)
    with listening(engine, max_connections=8) as server, ExitStack() as stack:
        stream = stack.enter_context(RawClient(server.url))
        stream.send(stream.post("/v1/completions", LONG_STREAM))
        eventually(lambda: engine.stats().running == 1)
        held = []
        for n in range(100):
            client = stack.enter_context(RawClient(server.url))
            starts = (
                b"",
                client.head("GET", "/health")[:-2],
                client.post("/v1/completions", TEXT)[:-1],
            )
            client.send(starts[n % 3])
            held.append(client)
            if n % 10 == 9:
                assert healthy(server.url)
        assert len(server._http.peers.open) <= 8
        assert stream.read_until(b"data: [DONE]")  # requests that run keep their place
        first = held[1].answer()  # the longest waiting made way, and was told
        assert first.status == 503 and first.error["code"] == "too_many_connections"


def test_past_the_bound_newcomers_are_told_to_come_back() -> None:
    engine = FakeAsyncEngine(step=0.01)
    with listening(engine, max_connections=2) as server, ExitStack() as stack:
        streams = [stack.enter_context(RawClient(server.url)) for _ in range(2)]
        for stream in streams:
            stream.send(stream.post("/v1/completions", LONG_STREAM))
        eventually(lambda: engine.stats().running == 2)
        refused = httpx.get(server.url + "/health", trust_env=False)
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "too_many_connections"
        assert engine.stats().running == 2
        for stream in streams:
            assert stream.read_until(b"data: [DONE]")
        assert healthy(server.url)


FEW_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
from paceline.server.run import serve
from paceline.server.settings import ServerSettings
from tests.server.fake import FakeAsyncEngine
serve(FakeAsyncEngine(), ServerSettings(port=0))
"""


def test_few_open_files_are_enough() -> None:
    command = [sys.executable, "-c", FEW_FILES]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}
    with (
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        ) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1].removesuffix("/v1")
        for n in range(150):
            client = stack.enter_context(RawClient(url))
            client.send(client.head("GET", "/health")[:-2])
            if n % 10 == 0:
                assert healthy(url)
        for _ in range(20):
            assert healthy(url)
        process.terminate()
        assert process.wait(20) == 0


def test_more_connections_than_files_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"max_connections: got 1048576.*ulimit -n") as error:
        connection_bound(ServerSettings(max_connections=2**20))
    assert error.value.field == "max_connections"


# -- pipelining -----------------------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_order() -> None:
    with listening(FakeAsyncEngine(), keep_alive=60) as server, RawClient(server.url) as client:
        lengths = [n % 7 + 1 for n in range(40)]
        requests = [
            client.post("/v1/completions", {**TEXT, "max_tokens": n})
            + client.head("GET", "/health")
            for n in lengths
        ]
        client.send(b"".join(requests))
        for length in lengths:
            assert json.loads(client.answer().body)["usage"]["completion_tokens"] == length
            assert client.answer().body == b'{"status":"ok"}'
        assert healthy(server.url)


def test_too_many_pipelined_requests_end_the_connection() -> None:
    engine = FakeAsyncEngine(step=0.05)
    with listening(engine) as server, RawClient(server.url) as client:
        client.send(client.post("/v1/completions", {**TEXT, "max_tokens": 400}))
        eventually(lambda: engine.stats().running == 1)
        client.flood([client.head("GET", "/health") * (MAX_PIPELINED + 2)])
        assert client.rest() == b""
        eventually(lambda: len(engine.aborted) == 1)
        assert healthy(server.url)


def test_garbage_behind_a_request_does_not_get_into_its_answer() -> None:
    engine = FakeAsyncEngine(step=0.01)
    with listening(engine) as server:
        with RawClient(server.url) as client:
            client.send(client.post("/v1/completions", LONG_STREAM))
            eventually(lambda: engine.stats().running == 1)
            client.flood([b"\x00garbage\r\n\r\n"])
            assert client.rest().count(b"HTTP/1.1") <= 1
        eventually(lambda: len(engine.aborted) == 1)
        with RawClient(server.url) as client:
            client.flood([b"\x00garbage\r\n\r\n"])
            answer = client.answer()
            assert answer.status == 400 and answer.error["code"] == "bad_http"


def test_an_upgrade_that_is_not_offered_is_ignored() -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    with listening(FakeAsyncEngine()) as server, RawClient(server.url) as client:
        client.send(client.head("GET", "/health", *upgrade) * 2)
        assert client.answer().status == 200
        assert client.answer().status == 200
