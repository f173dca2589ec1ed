"""Grammars that took the server along, or kept others waiting: each is now its sender's 400."""

from __future__ import annotations

import asyncio
import copy
import json
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from paceline.server import grammars
from paceline.server.app import create_app
from paceline.server.settings import ServerSettings
from tests.engine.test_grammar_bounds import chain, rules

from .conftest import CHAT, TEXT, Client, in_process
from .fake import FakeAsyncEngine

INT64_MIN = -(2**63)
SECONDS = 60.0
HEAVY = {"type": "integer", "multipleOf": 999983}  # 12 s of CPU time without limits


def named(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


ATTACKS: dict[str, tuple[dict[str, Any], str]] = {
    "A1 enum": ({"response_format": named({"enum": [INT64_MIN]})},
                "response_format.json_schema.schema.enum[0]"),
    "A1 const": ({"structured_outputs": {"json": {"properties": {"a": {"const": INT64_MIN + 2}}}}},
                 "structured_outputs.json.properties.a.const"),
    "A1 range": ({"structured_outputs": {"json": {"type": "integer", "minimum": INT64_MIN,
                                                  "maximum": INT64_MIN}}},
                 "structured_outputs.json.m"),
    "A1 in Lark": ({"structured_outputs": {"lark": f'start: %json {{"const": {INT64_MIN}}}'}},
                   "structured_outputs.lark"),
    "A2 references": ({"response_format": named(chain(1000, {}))},
                      "response_format.json_schema.schema.$defs.d"),
    "A2 rules": ({"structured_outputs": {"lark": rules(5000)}}, "structured_outputs.lark"),
    "B2 alternatives": (
        {"structured_outputs": {"lark": "start: " + "|".join(f'"a{i}"' for i in range(60_000))}},
        "structured_outputs.lark"),
    "B2 time": ({"structured_outputs": {"json": HEAVY}}, "structured_outputs.json"),
    "memory": ({"structured_outputs": {"regex": "a{1000000}"}}, "structured_outputs.regex"),
    "one slow token": ({"structured_outputs": {"regex": "a{300000}"}}, "structured_outputs.regex"),
    "levels": ({"structured_outputs": {"json": json.loads('{"items":' * 150 + "{}" + "}" * 150)}},
               "structured_outputs.json.items"),
    "bytes": ({"structured_outputs": {"regex": "(ab|c)" * 200_000}}, "structured_outputs.regex"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_a_400_that_names_the_place_and_the_next_request_is_served(
    client: Client, name: str
) -> None:
    changes, field = ATTACKS[name]
    response = client.chat(**changes)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(field) and len(error["message"]) < 3000
    assert client.chat(response_format=named({"enum": ["S", "M"]})).status_code == 200


def test_a_tool_whose_schema_is_hostile_is_named() -> None:
    engine = FakeAsyncEngine()
    engine.engine.tokenizer = with_tools(engine.engine.tokenizer)
    client = Client(engine, ServerSettings())
    good = {"type": "object", "properties": {"a": {"type": "string"}}}
    for bad, place in [
        ({"properties": {"a": {"enum": [INT64_MIN]}}}, ".properties.a.enum[0]"),
        (chain(1000, {}), ".$defs.d"),
        ({"properties": {"a": HEAVY}}, None),  # the tool's name where there is time to find it
        ({"properties": {"a": {"format": "shoe"}}}, ".properties.a.format"),
    ]:
        tools = [
            {"type": "function", "function": {"name": f"f{i}", "parameters": parameters}}
            for i, parameters in enumerate([good, bad])
        ]
        response = client.chat(tools=tools)
        assert response.status_code == 400, response.text
        param = response.json()["error"]["param"]
        expected = "tools" if place is None else f"tools[1].function.parameters{place}"
        assert param.startswith(expected)
        assert client.chat(tools=tools[:1]).status_code == 200


def test_a_heavy_grammar_delays_neither_prompts_nor_other_grammars() -> None:
    """The encoding thread used to compile: whoever came behind a heavy grammar waited for it."""
    ended: list[str] = []

    async def send(http: httpx.AsyncClient, name: str, path: str, body: dict[str, Any]) -> int:
        response = await http.post(path, json=body)
        ended.append(name)
        return response.status_code

    async def go() -> list[int]:
        async with in_process(create_app(FakeAsyncEngine(), ServerSettings())) as http:
            chat = "/v1/chat/completions"
            await send(http, "first", chat, {**CHAT, "response_format": named({"const": "warm"})})
            heavy = {**HEAVY, "multipleOf": 999979}
            jobs = [
                asyncio.create_task(
                    send(http, "heavy", chat, {**CHAT, "response_format": named(heavy)})
                )
            ]
            await asyncio.sleep(0.2)
            jobs.append(asyncio.create_task(send(http, "text", "/v1/completions", TEXT)))
            for i in range(10):
                bound = {**CHAT, "response_format": named({"enum": [f"choice {i}"]})}
                jobs.append(asyncio.create_task(send(http, "good", chat, bound)))
            return await asyncio.wait_for(asyncio.gather(*jobs), SECONDS)

    assert asyncio.run(go()) == [400] + [200] * 11
    assert ended[1:] and ended.index("heavy") == len(ended) - 1


def test_without_a_child_grammars_are_a_503_and_text_is_served(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.engine.engine.grammars.compiler.close()
    monkeypatch.setattr("sys.executable", "/no/such/python")
    response = client.chat(structured_outputs={"regex": "never (tried|out)"})
    assert response.status_code == 503 and "Retry-After" in response.headers
    assert response.json()["error"]["code"] == "grammars_unavailable"
    assert client.chat().status_code == 200
    monkeypatch.undo()
    assert client.chat(structured_outputs={"regex": "never (tried|out)"}).status_code == 200


def with_tools(tokenizer: Any) -> Any:
    made = copy.deepcopy(tokenizer)
    made.chat_template = (
        "{% for t in tools or [] %}{{ t.function.name }}<tool_call>{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    return made


def test_a_grammar_that_gets_no_turn_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "LONGEST_WAIT", 0.2)
    engine = FakeAsyncEngine()
    monkeypatch.setattr(engine.engine.grammars.compiler, "start", lambda grammar: Future())
    client = Client(engine, ServerSettings())
    response = client.chat(response_format=named({"enum": ["S", "M"]}))
    assert response.status_code == 429
    assert response.headers["Retry-After"]
    error = response.json()["error"]
    assert error["code"] == "grammars_busy"
    assert error["param"] == "response_format.json_schema.schema"
