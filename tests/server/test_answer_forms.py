"""Tools and reasoning over the real engine and a tiny random model, as templates form them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from paceline.engine.async_engine import AsyncEngine
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from tests.engine.tiny import VOCAB, tiny_model

from .conftest import listening

MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|channel|>", "<|message|>",
         "<|end|>", "<|start|>", "<|constrain|>", "<|return|>")  # fmt: skip
TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %} CALLS {{ c.function.name }} "
    "{{ c.function.arguments|tojson }}{% endfor %}"
    "{% if m.reasoning_content %} THOUGHT {{ m.reasoning_content }}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
PLAIN = (  # it knows no tools, and no role beside these
    "{% for m in messages if m.role in ['system', 'user', 'assistant'] %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
)
XML = (  # as Qwen3.5: XML for calls, and the prompt begins the reasoning
    "{% for t in tools or [] %}{{ t.function.name }} <tool_call><function=x><parameter=y> "
    "{% endfor %}" + TURNS + "{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)
CHANNELS = (
    "{% for t in tools or [] %}{{ t.function.description + t.function.name }} {% endfor %}"
    "{{ reasoning_effort or 'medium' }}" + TURNS.replace("<assistant>", "<|start|>assistant")
    + "{# <|channel|> <|message|> #}"
)  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {
        "size": {"type": "string", "enum": ["S", "M", "L"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["size", "count"],
}
TOOL = {"type": "function", "function": {"name": "order", "parameters": SCHEMA}}
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 300,
    "seed": 3,
}


def serving(template: str, drafter: tuple[str, ...], **settings: Any) -> Any:
    config = EngineConfig(
        model="tiny", dtype="float32", backend="torch", threads=1, drafter=drafter or None
    )
    size = {"vocab_size": VOCAB + len(MARKS), "max_position_embeddings": 4096}
    loaded = tiny_model("float32", **size)
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.add_tokens(list(MARKS), special_tokens=True)
    tokenizer.chat_template = template
    ends = frozenset({VOCAB + MARKS.index("<|return|>")})  # no byte that text may have
    model = replace(loaded, tokenizer=tokenizer, eos_ids=ends)
    return listening(AsyncEngine(build_engine(config, model)), **settings)


@pytest.fixture(scope="module", params=["PLAIN", "XML", "CHANNELS"])
def model(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The name of a template, and the address of a server with it."""
    with serving(globals()[request.param], ("suffix", "ngram")) as running:
        yield request.param, f"{running.url}/v1"


@pytest.fixture
def template(model: tuple[str, str]) -> str:
    return model[0]


@pytest.fixture
def http(model: tuple[str, str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=model[1], trust_env=False, timeout=30) as client:
        yield client


def chat(http: httpx.Client, **changes: Any) -> dict[str, Any]:
    response = http.post("/chat/completions", json={**CHAT, **changes})
    assert response.status_code == 200, response.text
    return response.json()


def refused(http: httpx.Client, **changes: Any) -> dict[str, Any]:
    response = http.post("/chat/completions", json={**CHAT, **changes})
    assert response.status_code == 400, response.text
    return response.json()["error"]


def ends_thoughts(template: str, bias: int = 1) -> dict[str, Any]:
    """Options that bring a random model's reasoning to an end: with a large bias soon."""
    if template == "PLAIN":
        return {}
    end = "</think>" if template == "XML" else "<|end|>"
    return {"logit_bias": {str(VOCAB + MARKS.index(end)): bias}}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "order"}}]
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_calls_are_the_same_with_speculation_on_and_off(
    http: httpx.Client, template: str, temperature: float, choice: Any
) -> None:
    said = []
    for speculative in ("off", None, {"drafter": "ngram"}):
        body = chat(
            http,
            tools=[TOOL],
            tool_choice=choice,
            parallel_tool_calls=False,
            temperature=temperature,
            speculative=speculative,
            return_token_ids=True,
            **ends_thoughts(template, bias=8),
        )
        said.append(body["choices"][0]["token_ids"])
        choice_made = body["choices"][0]
        message = choice_made["message"]
        assert choice_made["finish_reason"] == "tool_calls" and message["content"] is None
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == "order"
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
    assert said[0] == said[1] == said[2]


def test_streams_add_up_to_whole_answers(model: tuple[str, str]) -> None:
    template, url = model
    options: dict[str, Any] = {
        **CHAT, **ends_thoughts(template), "tools": [TOOL], "tool_choice": "required",
        "parallel_tool_calls": False,
    }  # fmt: skip
    thoughts = []
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        for seed in range(5):
            ask = {**options, "seed": seed}
            whole = client.chat.completions.create(**ask).choices[0]
            reasoning, calls, last = "", dict[int, list[str]](), None
            for chunk in client.chat.completions.create(**ask, stream=True):
                delta = chunk.choices[0].delta
                assert not delta.content
                reasoning += getattr(delta, "reasoning_content", None) or ""
                for call in delta.tool_calls or ():
                    made = calls.setdefault(call.index, ["", ""])
                    made[0] += call.function.name or ""
                    made[1] += call.function.arguments or ""
                last = chunk.choices[0].finish_reason
            assert last == whole.finish_reason
            thoughts.append(reasoning)
            assert reasoning == (getattr(whole.message, "reasoning_content", None) or "")
            said = [[c.function.name, c.function.arguments] for c in whole.message.tool_calls or ()]
            assert list(calls.values()) == said
    assert any(thoughts) == (template != "PLAIN")


def test_structured_answers_come_after_the_reasoning(http: httpx.Client, template: str) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    closed = {**SCHEMA, "additionalProperties": False}
    wanted["json_schema"]["schema"] = closed
    valid = 0
    for seed in range(4):
        body = chat(http, seed=seed, response_format=wanted, **ends_thoughts(template))
        choice = body["choices"][0]
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["message"]["content"]), closed)
            valid += 1
    assert valid


def test_a_conversation_with_calls_goes_on(http: httpx.Client, template: str) -> None:
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "order", "arguments": '{"count": 7}'},
    }
    messages = [
        *CHAT["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "seen 77"},
        {"role": "tool", "tool_call_id": "1", "content": "and 88"},
    ]
    for tools in ([TOOL], None):
        ask = {"tools": tools} if tools else {}
        body = chat(http, messages=messages, max_tokens=2, return_token_ids=True, **ask)
        ids = [token for token in body["prompt_token_ids"] if token < VOCAB]
        text = tiny_model("float32").tokenizer.decode(ids)
        assert all(part in text for part in ("order", '{"count": 7}', "seen 77", "and 88"))
        assert ('"size"' in text) == (template == "PLAIN" and bool(tools))
        if template == "PLAIN":
            assert text.count("<user>") == 2  # both results are one turn
            assert "Result of order:\nseen 77\n\nResult of order:\nand 88" in text


def test_a_plain_prompt_has_no_tools_where_none_may_be_called(
    http: httpx.Client, template: str
) -> None:
    body = chat(http, tools=[TOOL], tool_choice="none", max_tokens=2)
    more = body["usage"]["prompt_tokens"] - chat(http, max_tokens=2)["usage"]["prompt_tokens"]
    assert (more == 0) == (template == "PLAIN")


def test_thinking_is_switched_where_the_template_has_a_switch(
    http: httpx.Client, template: str
) -> None:
    def prompt(**changes: Any) -> list[int]:
        body = chat(http, max_tokens=2, return_token_ids=True, **changes)
        return body["prompt_token_ids"]

    plain = prompt()
    if template == "XML":
        off = prompt(enable_thinking=False)
        assert off != plain == prompt(enable_thinking=True)
        assert off == prompt(chat_template_kwargs={"enable_thinking": False})
        assert (
            off
            == prompt(reasoning_effort="none")
            == prompt(reasoning_effort="none", enable_thinking=False)
        )
        assert plain == prompt(reasoning_effort="medium")
        wrong = [
            {"reasoning_effort": "high"},
            {"reasoning_effort": "none", "enable_thinking": True},
        ]
        body = chat(http, enable_thinking=False, max_tokens=5)
        assert "reasoning_content" not in body["choices"][0]["message"]
    elif template == "CHANNELS":
        assert len(prompt(reasoning_effort="high")) == len(plain) - 2
        assert plain == prompt(enable_thinking=True)
        wrong = [{"enable_thinking": False}, {"chat_template_kwargs": {"thinking": False}}]
    else:
        assert plain == prompt(reasoning_effort="none") == prompt(enable_thinking=False)
        assert plain == prompt(chat_template_kwargs={"enable_thinking": False})
        wrong = [{"enable_thinking": True}, {"reasoning_effort": "low"}]
    for fields in wrong:
        error = refused(http, **fields)
        assert error["param"].split(".")[0] in fields
        assert error["message"].startswith(error["param"])


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_past_reasoning_is_handed_to_a_template_that_reads_it(
    http: httpx.Client, template: str, field: str
) -> None:
    answer = {"role": "assistant", "content": "So.", field: "Hm, 99."}
    messages = [*CHAT["messages"], answer, *CHAT["messages"]]
    if template == "PLAIN":
        assert refused(http, messages=messages)["param"] == f"messages[1].{field}"
        return
    body = chat(http, messages=messages, max_tokens=2)
    without = chat(http, messages=[*CHAT["messages"], {**answer, field: ""},
                                   *CHAT["messages"]], max_tokens=2)  # fmt: skip
    more = body["usage"]["prompt_tokens"] - without["usage"]["prompt_tokens"]
    assert more == len(" THOUGHT Hm, 99.")


def test_a_lenient_server_leaves_out_what_the_template_cannot_honour() -> None:
    with serving(PLAIN, (), lenient=True) as running:
        url = f"{running.url}/v1/chat/completions"
        fields = {
            "enable_thinking": True,
            "reasoning_effort": "high",
            "chat_template_kwargs": {"x": 1},
        }
        response = httpx.post(url, json={**CHAT, "max_tokens": 2, **fields}, trust_env=False)
        assert response.status_code == 200, response.text
        ignored = response.headers["x-paceline-ignored"].split(", ")
        assert sorted(ignored) == ["chat_template_kwargs.x", "enable_thinking", "reasoning_effort"]
