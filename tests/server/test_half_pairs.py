"""Half a surrogate pair, which JSON can escape and UTF-8 cannot hold: no request may have one, and
no answer fails over one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from paceline.server import bodies
from paceline.server.responses_api.objects import ResponseObject
from paceline.server.settings import ServerSettings

from .conftest import CHAT, TEXT, Client, check_body
from .fake import FakeAsyncEngine
from .test_access import logged, requests

HALF = "\ud800"  # of a surrogate pair: JSON can escape it, and UTF-8 cannot hold it
SCHEMA = {"type": "object", "properties": {"a": {"description": HALF}}}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
TOOL = {"name": "f", "parameters": {"description": HALF}}
AT = "properties.a.description"
PATHS = {
    "/v1/completions": TEXT,
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "Hi", "tool_choice": "none"},
    "/v1/messages": {**CHAT, "tool_choice": {"type": "none"}},
}
HALVES: list[tuple[str, dict[str, Any], str]] = [
    *((path, {"stop": ["a", HALF]}, "stop[1]") for path in list(PATHS)[:2]),
    *((path, {"user": HALF}, "user") for path in list(PATHS)[:3]),
    *((path, {"metadata": {"a": HALF}}, "metadata.a") for path in list(PATHS)[:3]),
    *((path, {"metadata": {HALF: "a"}}, f"metadata.{HALF}") for path in list(PATHS)[:3]),
    *((path, {"cache_salt": HALF}, "cache_salt") for path in PATHS),
    *((path, {"model": HALF}, "model") for path in PATHS),
    *((path, {"unknown": HALF}, "unknown") for path in PATHS),
    *((path, {HALF: None}, HALF) for path in PATHS),
    ("/v1/completions", {"structured_outputs": {"regex": HALF}}, "structured_outputs.regex"),
    ("/v1/completions", {"prompt": ["a", HALF]}, "prompt[1]"),
    ("/v1/chat/completions", {"tools": [{"type": "function", "function": TOOL}],
     "tool_choice": "none"}, "tools[0].function.parameters.description"),
    ("/v1/chat/completions", {"response_format": FORM},
     f"response_format.json_schema.schema.{AT}"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a", "name": HALF}]},
     "messages[0].name"),
    ("/v1/responses", {"instructions": HALF}, "instructions"),
    ("/v1/responses", {"safety_identifier": HALF}, "safety_identifier"),
    ("/v1/responses", {"tools": [{"type": "function", **TOOL}]},
     "tools[0].parameters.description"),
    ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
     f"text.format.schema.{AT}"),
    ("/v1/messages", {"tools": [{"name": "f", "input_schema": SCHEMA}]},
     f"tools[0].input_schema.{AT}"),
    ("/v1/messages", {"system": HALF}, "system"),
    ("/v1/messages", {"metadata": {"user_id": HALF}}, "metadata.user_id"),
    ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
     f"output_config.format.schema.{AT}"),
]  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "changes", "field"), HALVES)
def test_text_that_nobody_can_write_is_refused_at_the_door(
    client: Client, path: str, changes: dict[str, Any], field: str, streamed: bool
) -> None:
    body = {**PATHS[path], "stream": streamed, **changes}
    with logged() as lines:
        answer = client.send(path, json.dumps(body))
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert message.startswith(f"{field}: got ") and "written as UTF-8" in message
    assert not client.engine.submitted
    [line] = requests(lines)
    root = re.split(r"[.\[]", field, maxsplit=1)[0].replace(HALF, "\\ud800")
    assert line["reason"] == f"{root}: expected text that can be written as UTF-8"


def test_long_bodies_are_held_to_it_too_and_whole_pairs_pass() -> None:
    client = Client(FakeAsyncEngine(), ServerSettings())
    for text, status in (("\U0001f600" * 50 + HALF, 400), ("\U0001f600" * 50, 200)):
        metadata = {"a": " " * 40_000, "b": text}
        assert client.complete(metadata=metadata).status_code == status


def test_a_stream_that_cannot_repeat_its_request_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a second door: what a request has must not cut the stream that would tell of it."""
    monkeypatch.setattr(bodies, "SURROGATE", re.compile(b"never"))
    client = Client(FakeAsyncEngine(), ServerSettings())
    body = {**PATHS["/v1/responses"], "tools": [{"type": "function", **TOOL}], "stream": True}
    lines = client.send("/v1/responses", json.dumps(body)).text.split("\n\n")
    error, failed = (json.loads(line.split("\ndata: ")[1]) for line in lines if line)
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    assert failed["response"]["error"]["message"] == error["message"]
    assert failed["response"]["status"] == "failed" and failed["response"]["tools"] == []
    check_body(failed["response"], ResponseObject)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_call_with_half_a_pair_is_answered(streamed: bool) -> None:
    """The model may escape one. Its whole answer has the arguments as an object."""
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "x\\ud800", "b": "\\ud83d\\ude00"}}'
    reply = f"{call}\n</tool_call>"
    client = Client(FakeAsyncEngine(reply=reply, max_model_len=4096), ServerSettings())
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    body = {**CHAT, "tools": tools, "max_tokens": len(reply.encode()), "stream": streamed}
    answer = client.send("/v1/messages", json.dumps(body))
    assert answer.status_code == 200, answer.text
    if streamed:
        assert "message_stop" in answer.text
    else:
        assert answer.json()["content"][-1]["input"] == {"a": "x\ufffd", "b": "\U0001f600"}
