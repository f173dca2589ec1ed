"""Structured output and tools over the real engine and a tiny random model, as clients see them."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

from paceline.engine import grammar_child
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.server.run import Server
from tests.engine.tiny import EOS, tiny_model

from .conftest import listening

# Hermes' format, without its text: a byte is a token here, and a context 1024 of them.
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}\n{% endfor %}"
)
SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["S", "M", "L"]}, "count": {"type": "integer", "maximum": 99,
                   "minimum": 0}},
    "required": ["size", "count"],
    "additionalProperties": False,
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "order", "parameters": SCHEMA}}
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 200,
    "seed": 3,
}


@pytest.fixture(scope="module")
def engine() -> AsyncEngine:
    config = EngineConfig(model="tiny", dtype="bfloat16", threads=1, drafter=("suffix", "ngram"))
    loaded = tiny_model("bfloat16")
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.chat_template = TEMPLATE
    return AsyncEngine(build_engine(config, replace(loaded, tokenizer=tokenizer)))


@pytest.fixture(scope="module")
def server(engine: AsyncEngine) -> Iterator[Server]:
    with listening(engine) as running:
        yield running


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/v1", trust_env=False, timeout=30) as client:
        yield client


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def chat(http: httpx.Client, **changes: Any) -> dict[str, Any]:
    response = http.post("/chat/completions", json={**CHAT, **changes})
    assert response.status_code == 200, response.text
    return response.json()


def refused(http: httpx.Client, path: str = "/chat/completions", **changes: Any) -> dict[str, Any]:
    response = http.post(path, json={**CHAT, **changes})
    assert response.status_code == 400, response.text
    return response.json()["error"]


def wanted(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_schema_is_adhered_to_with_speculation_on_and_off(
    http: httpx.Client, temperature: float
) -> None:
    texts = []
    for speculative in ("off", None, {"drafter": "ngram"}):
        body = chat(
            http,
            response_format=wanted(SCHEMA),
            temperature=temperature,
            speculative=speculative,
        )
        choice = body["choices"][0]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
        forced = body["metrics"]["forced_tokens"]
        assert 20 < forced < body["usage"]["completion_tokens"]
        texts.append(choice["message"]["content"])
    assert len(set(texts)) == 1


def test_any_object(http: httpx.Client) -> None:
    body = chat(http, response_format={"type": "json_object"}, max_tokens=40)
    assert body["choices"][0]["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    ("wish", "fits"),
    [
        ({"regex": "[ab]{3}-[0-9]+!"}, "[ab]{3}-[0-9]+!"),
        ({"lark": 'start: "x" N\nN: /[0-9]{2}/'}, "x[0-9]{2}"),
        ({"choice": ["yes.", "no?"]}, r"yes\.|no\?"),
        ({"json": {"enum": [1, "a"]}}, '1|"a"'),
    ],
)
@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
def test_grammars_through_extra_fields(
    http: httpx.Client, wish: dict[str, Any], fits: str, path: str
) -> None:
    body = {**CHAT, "structured_outputs": wish, "max_tokens": 60}
    if path == "/completions":
        body = {**{k: v for k, v in body.items() if k != "messages"}, "prompt": "Hi"}
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    assert choice["finish_reason"] == "length" or re.fullmatch(fits, text)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"response_format": wanted({"properties": {"a": {"uniqueItems": True}}})},
        "response_format.json_schema.schema.properties.a.uniqueItems",
        "'uniqueItems'",
    ),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
    ({"response_format": wanted(5)}, "response_format.json_schema.schema", "5"),
    ({"response_format": wanted(SCHEMA), "ignore_eos": True}, "ignore_eos", "grammar"),
    ({"structured_outputs": {"regex": "a("}}, "structured_outputs.regex", "unclosed"),
    ({"structured_outputs": {"lark": "start: x"}}, "structured_outputs.lark", "unknown name"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice", "empty"),
    ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar", "unknown field"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": wanted(SCHEMA)},
        "structured_outputs",
        "response_format",
    ),
    ({"tools": [TOOL], "structured_outputs": {"regex": "a"}}, "structured_outputs.regex", "JSON"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name", "order"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", ""),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]},
        "tools[0].function.parameters.not",
        "'not'",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters":
            {"type": "array"}}}]},
        "tools[0].function.parameters.type",
        "object",
    ),
    ({"tool_choice": "required"}, "tool_choice", "tools"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice.function.name",
        "order",
    ),
    (
        {"messages": [{"role": "user", "content": "x", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]},
        "messages[0].tool_calls",
        "assistant",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[]"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
        "JSON object",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "field", "says"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(
    http: httpx.Client, change: dict[str, Any], field: str, says: str
) -> None:
    error = refused(http, **change)
    assert error["param"] == field and error["message"].startswith(field)
    assert says in error["message"]


def test_tool_calls_with_the_official_client(client: openai.OpenAI) -> None:
    options = {k: v for k, v in CHAT.items() if k != "model"}
    answer = client.chat.completions.create(
        model="tiny", tools=[TOOL], tool_choice="required", parallel_tool_calls=False, **options
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.function.name == "order"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    # The conversation goes on with what the tool said.
    messages = [
        *CHAT["messages"],
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "done"},
    ]
    again = client.chat.completions.create(
        model="tiny", messages=messages, tools=[TOOL], max_tokens=5
    )
    assert again.usage.prompt_tokens > answer.usage.prompt_tokens
    named = {"type": "function", "function": {"name": "order"}}
    answer = client.chat.completions.create(
        model="tiny", tools=[TOOL], tool_choice=named, **options
    )
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["order"]


def test_streamed_calls_add_up_to_the_whole_answers(client: openai.OpenAI) -> None:
    options = {k: v for k, v in CHAT.items() if k != "model"}
    ask: dict[str, Any] = {"model": "tiny", "tools": [TOOL], "tool_choice": "required", **options}
    whole = client.chat.completions.create(**ask).choices[0]
    with client.chat.completions.stream(**ask) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == whole.finish_reason
    mine = [(c.function.name, c.function.arguments) for c in final.message.tool_calls]
    assert mine == [(c.function.name, c.function.arguments) for c in whole.message.tool_calls]


def test_no_call_where_none_is_wanted(http: httpx.Client) -> None:
    body = chat(http, tools=[TOOL], tool_choice="none", max_tokens=10)
    assert "tool_calls" not in body["choices"][0]["message"]
    assert "forced_tokens" not in body["metrics"]


class Order(BaseModel):
    size: Literal["S", "M", "L"]
    count: Literal[1, 2, 3]


def test_parsed_answers_of_the_official_client(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=CHAT["messages"], response_format=Order, max_tokens=100, seed=1
    )
    assert isinstance(answer.choices[0].message.parsed, Order)


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_framework_runs_its_tools(server: Server, streamed: bool) -> None:
    """pydantic-ai: the answer itself is a call of its output tool, so a random model's run ends."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="any")
    agent = Agent(
        OpenAIChatModel("tiny", provider=provider),
        output_type=Order,
        model_settings={"max_tokens": 150, "seed": 2, "parallel_tool_calls": False},
    )

    async def ask() -> Order:
        if not streamed:
            return (await agent.run("Order something.")).output
        async with agent.run_stream("Order something.") as running:
            return await running.get_output()

    assert isinstance(asyncio.run(ask()), Order)


def test_the_stream_of_a_grammar_that_gives_up_tells_so(
    http: httpx.Client, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.engine.grammar import GrammarFailed, GrammarState

    def fail(self: GrammarState, token: int) -> None:
        raise GrammarFailed("too many states")

    monkeypatch.setattr(GrammarState, "advance", fail)
    body = {**CHAT, "response_format": wanted(SCHEMA)}
    response = http.post("/chat/completions", json=body)
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "grammar_failed"
    assert error["type"] == "invalid_request_error" and "simplify" in error["message"]
    assert error["param"] == "response_format.json_schema.schema"
    streamed = http.post("/chat/completions", json={**body, "stream": True})
    assert json.loads(streamed.text.split("data: ")[-1])["error"] == error
    monkeypatch.undo()
    chat(http, response_format=wanted(SCHEMA))  # the engine goes on


@pytest.mark.parametrize("speculative", ["off", {"drafter": "ngram"}])
@pytest.mark.parametrize("fuel", ["step_max_items", "max_items_in_row"])
def test_a_grammar_that_runs_out_of_fuel_is_the_clients_error(
    http: httpx.Client, speculative: Any, fuel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ambiguous grammar costs more with each token. Past the fuel, llguidance allows nothing but
    the end of the text: that must not look like a whole answer."""
    monkeypatch.setitem(grammar_child.LIMITS, fuel, 90)  # here, not in the child
    grammar = f'start: s "."\ns: s s | "a" | "{fuel[0]}" | s s s'
    full_stop = tiny_model("bfloat16").tokenizer(".")["input_ids"][0]
    body = {**CHAT, "structured_outputs": {"lark": grammar}, "speculative": speculative}
    body["logit_bias"] = {str(full_stop): -100}
    response = http.post("/chat/completions", json=body)
    assert response.status_code == 400, response.text[-300:]
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("structured_outputs.lark", "grammar_failed")
    chat(http, response_format=wanted(SCHEMA))


def test_a_server_that_stops_leaves_no_child() -> None:
    config = EngineConfig(model="tiny", dtype="bfloat16", threads=1, drafter=None)
    loaded = replace(tiny_model("bfloat16"), eos_ids=frozenset({EOS, EOS + 1}))
    engine = AsyncEngine(build_engine(config, loaded))
    compiler = engine.engine.grammars.compiler
    with (
        listening(engine) as running,
        httpx.Client(base_url=f"{running.url}/v1", trust_env=False, timeout=60) as http,
    ):
        body = {"model": "tiny", "prompt": "Hi", "structured_outputs": {"choice": ["a", "b"]}}
        assert http.post("/completions", json=body).status_code == 200
        pid = compiler.child_pid
        assert pid is not None
    assert compiler.child_pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
