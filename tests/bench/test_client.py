"""The streaming client and the server subprocess, against servers made for the test."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.load import client
from paceline.bench.load.answers import DraftCounts
from paceline.bench.load.client import ChatClient, ServerError, served_model
from paceline.bench.load.server_process import ServerProcess
from paceline.bench.prompts import BenchPrompt
from paceline.core import PacelineError
from tests.orphans import on_linux, outlives_parent

PROMPT = BenchPrompt("hello", "chat", ({"role": "user", "content": "Hello"},))
COUNTS = {"num_spec_steps": 1, "num_accepted_draft_tokens": 2, "num_draft_tokens": 4}
ALL_COUNTS = {**COUNTS, "parts": {"ngram": COUNTS}}
EVENTS: list[dict[str, Any]] = [
    {"choices": [{"delta": {"content": "Hi "}, "token_ids": [1]}]},
    {"choices": [{"delta": {"content": "you"}, "token_ids": [2, 3, 4], "finish_reason": "stop"}]},
    {"choices": [], "usage": {}, "metrics": {"speculative_decoding": ALL_COUNTS}},
]


class Handler(BaseHTTPRequestHandler):
    bodies: list[dict[str, Any]]

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "tiny"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        if body["model"] == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            return
        if body["model"] == "mute":
            time.sleep(0.5)
            return
        if body["model"] != "tiny":
            self._send(404, '{"error": {"message": "model: got \'large\'"}}')
            return
        lines = [f"data: {json.dumps(event)}\n\n" for event in EVENTS]
        self._send(200, "".join([*lines, "data: [DONE]\n\n"]))

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.bodies = []
    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


def ask(url: str, model: str, *settings: Any) -> list[Any]:
    async def session() -> list[Any]:
        asker = ChatClient(url, model=model, max_tokens=9, extra={"top_k": 5})
        try:
            return [await asker(PROMPT, setting) for setting in settings]
        finally:
            await asker.close()

    return asyncio.run(session())


def test_tokens_text_and_acceptance_come_from_the_stream(server: str) -> None:
    (answer,) = ask(server, "tiny", None)
    assert answer.token_ids == [1, 2, 3, 4]
    assert (answer.text, answer.finish_reason) == ("Hi you", "stop")
    assert answer.acceptance_length == 3.0
    assert answer.parts == {"ngram": DraftCounts(rounds=1, tokens=4, accepted=2)}
    assert answer.arrivals[1] == answer.arrivals[3]  # one step, one time


def test_every_request_has_a_cache_salt_of_its_own(server: str) -> None:
    ask(server + "/v1", "tiny", "off", None)
    off, on = Handler.bodies
    assert off["cache_salt"] != on["cache_salt"]
    assert off["speculative"] == "off" and "speculative" not in on
    assert (on["max_completion_tokens"], on["top_k"], on["stream"]) == (9, 5, True)


def test_an_error_of_the_server_is_shown(server: str) -> None:
    with pytest.raises(ServerError, match=r"404.*large"):
        ask(server, "large", None)


@pytest.mark.parametrize(
    ("model", "why"), [("cut", "peer closed connection"), ("mute", "ReadTimeout")]
)
def test_a_server_that_breaks_off_is_named_with_the_prompt(
    server: str, model: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.2)
    with pytest.raises(ServerError, match=rf"{server}.* broke off at the prompt 'hello': {why}"):
        ask(server, model, None)


def test_the_served_model_is_found_and_a_missing_server_is_named(server: str) -> None:
    assert asyncio.run(served_model(server)) == "tiny"
    with pytest.raises(ServerError, match=r"no server at http://127.0.0.1:9"):
        asyncio.run(served_model("http://127.0.0.1:9"))


def test_a_server_that_refuses_its_options_is_reported_with_its_last_words(tmp_path: Path) -> None:
    server = ServerProcess(["--max-num-seqs", "many"], tmp_path / "log")
    with pytest.raises(PacelineError, match=r"code 2[\s\S]*invalid int value: 'many'"):
        server.wait_until_healthy(60)
    assert not server.stop()


SERVER = """
import sys, time
from pathlib import Path
from paceline.bench.load.server_process import ServerProcess
ServerProcess.program = (sys.argv[1],)
server = ServerProcess((), Path("/dev/null"))
time.sleep(600)
"""


@on_linux
def test_a_server_ends_with_whoever_started_it(tmp_path: Path) -> None:
    assert not outlives_parent(SERVER, tmp_path)
