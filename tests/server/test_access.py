"""The log has a line for each request and refusal, and nothing of any text."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from paceline.server import logs
from paceline.server.logs import MOST_LINES, RequestLine, logging_to
from paceline.server.settings import ServerSettings

from .conftest import TEXT, Client, listening
from .fake import FakeAsyncEngine
from .raw import RawClient

CANARY = "zebra-secret"
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": CANARY}}}
TOOL = {"type": "function", "function": {"name": CANARY}}
KEYS = ("team-a s3cret", "plain")


@contextmanager
def logged(**options: Any) -> Iterator[list[dict[str, Any]]]:
    """Gives the lines of the log, as objects, when the context has ended."""
    stream, lines = io.StringIO(), list[dict[str, Any]]()
    with logging_to(stream, level=options.pop("level", "info"), style="json"):
        yield lines
    assert CANARY not in stream.getvalue()
    lines += map(json.loads, stream.getvalue().splitlines())


def requests(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["logger"] == "paceline.requests"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_tells_tokens_times_and_key(stream: bool) -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(api_keys=KEYS))
    with logged() as lines:
        headers = {"Authorization": "Bearer s3cret"}
        answer = client.post(
            "/v1/completions?x=1",
            json={**TEXT, "prompt": CANARY, "stream": stream},
            headers=headers,
        )
        assert answer.status_code == 200
    [line] = requests(lines)
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
    assert (line["prompt_tokens"], line["output_tokens"]) == (len(CANARY), TEXT["max_tokens"])
    assert line["finish"] == "length" and line["key"] == "team-a" and line["level"] == "info"
    assert 0 < line["ttft"] <= line["seconds"] and line["tpot"] >= 0
    assert line["al"] == pytest.approx(8 / 3, abs=0.01)
    assert line["id"] == answer.headers["x-request-id"] and line["id"].startswith("cmpl-")


def test_a_request_without_a_token_has_no_ttft(client: Client) -> None:
    with logged() as lines:
        assert client.complete(max_tokens=0, echo=True, logprobs=1).status_code == 200
    [line] = requests(lines)
    assert (line["status"], line["output_tokens"]) == (200, 0)
    assert not {"ttft", "tpot"} & line.keys()


REFUSED: list[tuple[str, Any, int, str]] = [
    ("temperature", CANARY, 400, "temperature: expected"),
    ("temprature", CANARY, 400, "temprature: unknown field"),
    ("response_format", SCHEMA, 400, "response_format: refused"),
    ("tool_choice", TOOL, 400, "tool_choice: expected null, unless"),
    ("messages", [{"role": "user", "content": CANARY, "name": CANARY}], 400, "messages[0].name"),
    ("messages", [{"role": CANARY, "content": "Hi"}], 400, "messages[0].role: expected 'system'"),
    ("messages", [{"role": "user"}], 400, "messages[0].content: expected text"),
    ("messages", [{"content": CANARY}], 400, "messages[0].role: missing"),
    ("messages", CANARY, 400, "messages: expected a list"),
    ("tools", CANARY, 400, "tools: expected a list"),
    ("response_format", {"type": CANARY}, 400, "response_format.type: expected one of text, "),
    ("reasoning_effort", CANARY, 400, "reasoning_effort: expected 'none', 'minimal'"),
    ("chat_template_kwargs", {CANARY: 1}, 400, "chat_template_kwargs: expected variables"),
    ("max_tokens", 10_000, 400, "max_tokens: expected"),
    ("model", "gpt-5", 404, "model: no model 'gpt-5'"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "status", "reason"), REFUSED)
def test_a_refusal_has_its_reason_and_not_the_value(
    client: Client, field: str, value: Any, status: int, reason: str
) -> None:
    with logged() as lines:
        assert client.chat(**{field: value}).status_code == status
    [line] = requests(lines)
    assert line["status"] == status and line["reason"].startswith(reason)
    assert line["level"] == "warning"


def test_refusals_before_the_app_are_logged_too() -> None:
    with (
        logged() as lines,
        listening(FakeAsyncEngine(), api_keys=KEYS, max_body_bytes=100) as server,
        httpx.Client(base_url=server.url, trust_env=False) as http,
        RawClient(server.url) as client,
    ):
        assert http.get("/v1/models").status_code == 401
        headers = {"Authorization": "Bearer plain"}
        assert http.post("/v1/completions", content="x" * 200, headers=headers).is_error
        client.send(client.head("GET", "/", *["A: b"] * 200))
        assert client.answer().status == 431
    assert [line["status"] for line in requests(lines)] == [401, 413, 431]
    assert requests(lines)[1]["key"] == "key-2"


def test_an_unexpected_error_is_a_line_and_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(FakeAsyncEngine(), ServerSettings())
    monkeypatch.setattr(client.engine, "submit", lambda *_, **__: 1 / 0)
    with logged() as lines:
        assert client.complete().status_code == 500
    assert [line["status"] for line in requests(lines)] == [500]
    assert any("ZeroDivisionError" in line.get("exception", "") for line in lines)


def test_a_stream_that_fails_is_a_warning() -> None:
    client = Client(FakeAsyncEngine(fail=True), ServerSettings())
    with logged() as lines:
        assert client.complete(stream=True).status_code == 200
    assert [(line["level"], line["finish"]) for line in requests(lines)] == [("warning", "error")]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": CANARY}], "max_tokens": 5}),
        ("/v1/responses", {"input": CANARY, "max_output_tokens": 5}),
    ],
)
def test_the_other_apis_are_logged_too(client: Client, path: str, body: dict[str, Any]) -> None:
    body = {"model": "fake-model", **body}
    with logged() as lines:
        for stream in (False, True):
            assert client.post(path, json={**body, "stream": stream}).status_code == 200
        assert client.post(path, json={**body, "temperature": CANARY}).status_code == 400
    whole, streamed, refused = requests(lines)
    assert whole["output_tokens"] == streamed["output_tokens"] == 5
    assert refused["reason"].startswith("temperature: expected")


def test_probes_are_quiet_and_levels_hold(client: Client) -> None:
    with logged() as lines:
        client.get("/health")
        client.get("/ui/state")
    assert requests(lines) == []
    with logged(level="debug") as lines:
        client.get("/health")
    assert len(requests(lines)) == 1
    with logged(level="warning") as lines:
        client.complete()
        client.complete(temperature=-1)
    assert [line["status"] for line in requests(lines)] == [400]


def test_a_path_cannot_forge_a_line(client: Client) -> None:
    stream = io.StringIO()
    with logging_to(stream, level="info", style="text"):
        client.get("/v1/%0aINFO forged")
    assert stream.getvalue().count("\n") == 1
    assert str(RequestLine({"client": "-", "method": "GET", "path": "/", "status": 400,
                            "reason": "a b"})) == '- GET / 400 reason="a b"'  # fmt: skip


@pytest.mark.parametrize("root_path", ["", "/llm"])
@pytest.mark.parametrize("path", ["/x%20200%20key=admin", "/x%22%20key=admin%20%22"])
def test_a_path_cannot_forge_a_field(root_path: str, path: str) -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(root_path=root_path))
    stream = io.StringIO()
    with logging_to(stream, level="info", style="text"):
        assert client.get(f"{root_path}{path}").status_code == 404
    (line,) = stream.getvalue().splitlines()
    head, reason, rest = re.split(r'reason=("(?:\\.|[^"\\])*")', line)
    assert f" GET {path} 404 " in head and "key=" not in head.replace(path, "") + rest
    assert "key=admin" in json.loads(reason)


def test_a_log_that_nobody_reads_stops_nothing() -> None:
    held = threading.Event()

    class Held(io.StringIO):
        def write(self, text: str) -> int:
            held.wait(20)
            return super().write(text)

    began = time.monotonic()
    with logging_to(Held(), level="info", style="text"):
        for n in range(MOST_LINES + 50):
            logging.getLogger("x").info("line %d", n)
        assert time.monotonic() - began < 10
        held.set()


def test_lines_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_LINES", 3)
    stream = io.StringIO()
    with logging_to(stream, level="info", style="text"):
        for n in range(10):
            logging.getLogger("x").info("line %d", n)
    lines = stream.getvalue().splitlines()
    assert [line.rsplit(maxsplit=1)[1] for line in lines[:3]] == ["0", "1", "2"]
    assert "7 lines of the log were left out" in lines[-1]
