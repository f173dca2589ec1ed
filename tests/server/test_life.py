"""Ports, signals and the end of a server's life."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from paceline.core import PacelineError
from paceline.server import run
from paceline.server.run import UiServer
from paceline.server.settings import ServerSettings
from paceline.server.sockets import bind

from .conftest import TEXT, eventually, listening
from .fake import FakeAsyncEngine

LONG = {**TEXT, "max_tokens": 300, "ignore_eos": True}
MAIN = """
from paceline.server.run import serve
from paceline.server.settings import ServerSettings
from tests.server.fake import FakeAsyncEngine
serve(FakeAsyncEngine(step=0.01), ServerSettings(port=0, drain_timeout={timeout}))
"""
ROOT = Path(__file__).parents[2]


def test_a_port_in_use_is_named() -> None:
    with listening(FakeAsyncEngine()) as server:
        port = int(server.url.rsplit(":", 1)[1])
        with pytest.raises(PacelineError, match=f"port {port}.*in use"):
            bind(ServerSettings(port=port))


def test_a_host_that_is_not_ours_is_named() -> None:
    with pytest.raises(PacelineError, match=r"203\.0\.113\.1"):
        bind(ServerSettings(host="203.0.113.1", port=0))


def test_drain_finishes_what_runs_and_refuses_what_comes() -> None:
    engine = FakeAsyncEngine(step=0.005)
    results: list[httpx.Response] = []
    with (
        listening(engine, drain_timeout=20) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=20) as http,
    ):
        running = threading.Thread(
            target=lambda: results.append(http.post("/v1/completions", json=LONG))
        )
        running.start()
        eventually(lambda: engine.stats().running == 1)
        server.stop()
        eventually(lambda: engine.draining)
        assert http.get("/health").status_code == 503
        assert http.post("/v1/completions", json=TEXT).status_code == 503
        running.join(20)
    assert results[0].json()["usage"]["completion_tokens"] == 300
    assert not engine.aborted and not engine.alive


@pytest.mark.parametrize("stream", [False, True])
def test_what_outlives_the_drain_is_told(stream: bool) -> None:
    engine = FakeAsyncEngine(step=0.02)
    answers: list[httpx.Response] = []
    with (
        listening(engine, drain_timeout=0.1) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=20) as http,
    ):
        body = {**LONG, "stream": stream}
        running = threading.Thread(
            target=lambda: answers.append(http.post("/v1/completions", json=body))
        )
        running.start()
        eventually(lambda: engine.stats().running == 1)
        server.stop()
        running.join(20)
    assert "shutting down" in answers[0].text
    assert answers[0].status_code == (200 if stream else 503)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_drains_and_exits_0(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAIN.format(timeout=20)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Paceline is serving at http://127.0.0.1:"), line
            url = line.split()[-1]
            assert f"{url.removesuffix('v1')} (its web page)" in line
            body = {**LONG, "stream": True}
            with httpx.stream("POST", f"{url}/completions", json=body, trust_env=False) as answer:
                lines = answer.iter_lines()
                next(lines)
                process.send_signal(number)
                assert [line for line in lines if line][-1] == "data: [DONE]"
            assert process.wait(20) == 0
            assert process.stdout.read() == ""
        finally:
            process.kill()


def test_a_second_signal_does_not_wait() -> None:
    engine = FakeAsyncEngine(step=0.05)
    with listening(engine, drain_timeout=60) as server:
        body = {**LONG, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, trust_env=False) as r:
            next(r.iter_lines())
            server.stop()
            eventually(lambda: engine.draining)
            began = time.monotonic()
            server.stop()
            eventually(lambda: not engine.alive)
            assert time.monotonic() - began < 3
    assert engine.aborted


class SlowClient:
    """Asks for a stream of half a megabyte over buffers that hold a fraction of it."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        body = json.dumps({**LONG, "max_tokens": 6000, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket = socket.socket()
        self._socket.settimeout(10)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        self._socket.connect((address.hostname, address.port))
        self._socket.sendall(head.encode() + body)

    def read(self) -> bytes:
        """All that comes before the connection ends, which the server may cut."""
        with self._socket:
            return b"".join(iter(self._received, b""))

    def _received(self) -> bytes:
        with contextlib.suppress(ConnectionResetError):
            return self._socket.recv(65536)
        return b""


def test_a_slow_client_has_the_whole_drain_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LAST_WRITES", 0.1)
    engine = FakeAsyncEngine(max_model_len=8192)
    with listening(engine, drain_timeout=20) as server:
        client = SlowClient(server.url)
        eventually(lambda: engine.submitted and not engine.stats().running)
        server.stop()
        time.sleep(1)  # far longer than the last writes alone
        assert client.read().endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("signals", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_client_that_does_not_read_is_cut_off(
    signals: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run, "LAST_WRITES", 0.1)
    engine = FakeAsyncEngine(max_model_len=8192)
    with listening(engine, drain_timeout=0.5 if signals == 1 else 60) as server:
        client = SlowClient(server.url)
        eventually(lambda: engine.submitted and not engine.stats().running)
        for _ in range(signals):
            server.stop()
            time.sleep(0.3)
        eventually(lambda: not engine.alive)
        assert b"[DONE]" not in client.read()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_stop_before_the_start_ends_the_server_once_it_is_up() -> None:
    urls: list[str] = []
    server = UiServer(ServerSettings(port=0), urls.append)
    server.stop()
    asyncio.run(asyncio.wait_for(server.run(), 20))
    assert len(urls) == 1
