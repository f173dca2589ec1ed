"""Anthropic's Messages API, with its official client over a real socket and by raw requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from paceline.server.messages_api.objects import MessageObject
from paceline.server.run import Server
from paceline.server.settings import ServerSettings

from .conftest import Client, check_body, listening
from .fake import REPLY, FakeAsyncEngine
from .response_calls import ARGUMENTS, CALL, REASONED, prompt_of, thinking_tokenizer

ASKED = [{"role": "user", "content": "Hi"}]
CALLED = {"type": "tool_use", "id": "x", "name": "get_weather", "input": {}}
BODY = {"model": "fake-model", "max_tokens": 5, "messages": ASKED}
WEATHER = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def engine() -> FakeAsyncEngine:
    return FakeAsyncEngine(max_model_len=4096)


@pytest.fixture(scope="module")
def server(engine: FakeAsyncEngine) -> Iterator[Server]:
    with listening(engine, api_keys=("secret",)) as running:
        yield running


@pytest.fixture
def sdk(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0) as made:
        yield made


def create(client: Client, **changes: Any) -> Any:
    return client.post("/v1/messages", json={**BODY, **changes})


def test_the_first_example_of_the_readme(sdk: anthropic.Anthropic, engine: FakeAsyncEngine) -> None:
    message = sdk.messages.create(
        max_tokens=5,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hello, Claude"}]}],
        model="fake-model",
    )
    assert message.content[0].text == REPLY[:5]
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 5)
    assert message.usage.input_tokens == len(engine.submitted[-1].prompt_ids)
    assert message.metrics["speculative_decoding"]["num_spec_tokens"] == 4
    assert prompt_of(engine) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello, Claude<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_message_has_the_shape_of_the_schema(client: Client) -> None:
    response = create(client, max_tokens=100, stop_sequences=["ß"])
    body = response.json()
    check_body(body, MessageObject)
    assert body["id"].startswith("msg_") and body["content"][0]["text"].startswith("Ein Gru")
    assert create(client, max_tokens=100).json()["stop_reason"] == "end_turn"


def test_the_stream_helper(sdk: anthropic.Anthropic) -> None:
    with sdk.messages.stream(**{**BODY, "max_tokens": 100}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == REPLY * 3
    assert final.stop_reason == "end_turn" and final.usage.output_tokens > 40


def test_tools_are_called_and_answered(
    sdk: anthropic.Anthropic, engine: FakeAsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "reply", CALL)
    options = {"model": "fake-model", "max_tokens": len(CALL.encode()), "tools": [WEATHER]}
    message = sdk.messages.create(messages=ASKED, **options)
    assert [block.type for block in message.content] == ["text", "tool_use"]
    use = message.content[1]
    assert (use.name, use.input) == ("get_weather", json.loads(ARGUMENTS))
    with sdk.messages.stream(messages=ASKED, **options) as stream:
        events = list(stream)
        assert stream.get_final_message().content[1].input == use.input
    kinds = [event.type for event in events if event.type.startswith(("content", "message"))]
    assert [kind for kind in dict.fromkeys(kinds)][:4] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    ]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "12 degrees"}
    more = {"type": "text", "text": "And tomorrow?"}
    turns = [*ASKED, {"role": "assistant", "content": message.content}]
    sdk.messages.create(messages=[*turns, {"role": "user", "content": [result, more]}], **options)
    for part in ("Sure.", ARGUMENTS, "12 degrees", "And tomorrow?"):
        assert part in prompt_of(engine)


def test_a_call_that_opens_brackets_to_the_end_has_no_arguments() -> None:
    deep = CALL.partition("{")[0] + '{"name": "get_weather", "arguments": {"a": ' + "[" * 1500
    engine = FakeAsyncEngine(reply=deep, bursts=(500,), max_model_len=4096)
    client = Client(engine, ServerSettings())
    body = create(client, tools=[WEATHER], max_tokens=len(deep)).json()
    assert (body["content"][1]["input"], body["stop_reason"]) == ({}, "max_tokens")


def test_a_tool_can_be_required(sdk: anthropic.Anthropic, engine: FakeAsyncEngine) -> None:
    options = {**BODY, "tools": [WEATHER]}
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        sdk.messages.create(**options, tool_choice=choice)
        assert engine.submitted[-1].params.grammar is not None
    sdk.messages.create(**options, tool_choice={"type": "none"})
    assert engine.submitted[-1].params.grammar is None


def test_thinking_is_a_block_of_its_own() -> None:
    engine = FakeAsyncEngine(reply=REASONED)
    engine.engine.tokenizer = thinking_tokenizer(engine.engine.tokenizer)
    client = Client(engine, ServerSettings())
    options = {"max_tokens": len(REASONED), "thinking": {"type": "enabled", "budget_tokens": 1024}}
    body = create(client, **options).json()
    check_body(body, MessageObject)
    assert [block["type"] for block in body["content"]] == ["thinking", "text"]
    assert body["content"][0]["thinking"] == "Hm." and body["content"][1]["text"] == "Yes."
    lines = create(client, **options, stream=True).text.split("\n\n")
    events = [json.loads(line.split("\ndata: ")[1]) for line in lines if line]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "Hm."


def test_a_last_turn_of_the_assistant_begins_the_answer(
    sdk: anthropic.Anthropic, engine: FakeAsyncEngine
) -> None:
    options = {"model": "fake-model", "max_tokens": 1}
    for content in ("The answer is (", [{"type": "text", "text": "The answer is ("}]):
        sdk.messages.create(messages=[*ASKED, {"role": "assistant", "content": content}], **options)
        assert prompt_of(engine).endswith("<|im_start|>assistant\nThe answer is (")
    called = [{"type": "text", "text": "So"}, CALLED]
    sdk.messages.create(messages=[*ASKED, {"role": "assistant", "content": called}], **options)
    assert prompt_of(engine).endswith("<|im_start|>assistant\n")


def test_thoughts_can_be_sent_back() -> None:
    """A thought may be alone, and a turn may have several, between its texts and calls."""
    engine = FakeAsyncEngine(max_model_len=4096)
    engine.engine.tokenizer = thinking_tokenizer(engine.engine.tokenizer)
    client = Client(engine, ServerSettings())
    first, second = (
        {"type": "thinking", "thinking": text, "signature": ""} for text in ("Hm", "Or not")
    )
    said = {"type": "text", "text": "Yes."}
    for content, thought in (([first], "Hm"), ([first, said, second, CALLED], "Hm\nOr not")):
        turns = [*ASKED, {"role": "assistant", "content": content}, *ASKED]
        response = create(client, messages=turns)
        assert response.status_code == 200, response.text
        assert f"<think>{thought}</think>" in prompt_of(engine)


def test_tokens_are_counted(sdk: anthropic.Anthropic, engine: FakeAsyncEngine) -> None:
    asked = {"model": "fake-model", "messages": ASKED, "system": "Be brief."}
    count = sdk.messages.count_tokens(**asked).input_tokens
    assert count == sdk.messages.create(max_tokens=1, **asked).usage.input_tokens


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}
RESULT = {"type": "tool_result", "tool_use_id": "x", "content": "y"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type: got 'ima"),
    ({"messages": [{"role": "assistant", "content": [RESULT]}]}, "messages[0].content[0].type"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 5000}, "max_tokens"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"thinking": {"type": "disabled"}}, "thinking.type"),
    ({"tools": [{**WEATHER, "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
    ({"system": "refuse"}, "messages"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"logprobs": True}, "logprobs"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED, ids=[said[:20] for _, said in REFUSED])
def test_refusals_have_anthropics_form_and_name_the_field(
    client: Client, change: dict[str, Any], said: str
) -> None:
    response = create(client, **change)
    assert response.status_code == 400, response.text
    error = response.json()
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
    assert error["error"]["message"].startswith(said), error


def test_the_client_raises_its_own_errors(server: Server, sdk: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="no model 'claude'"):
        sdk.messages.create(**{**BODY, "model": "claude"})
    other = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    with other, pytest.raises(anthropic.AuthenticationError, match="a valid API key"):
        other.messages.create(**BODY)


def test_a_failing_engine_ends_the_stream_with_an_event() -> None:
    client = Client(FakeAsyncEngine(fail=True), ServerSettings())
    assert create(client).json()["error"]["type"] == "api_error"
    last = create(client, stream=True).text.rstrip().split("\n\n")[-1]
    assert last.startswith("event: error\ndata: ") and '"api_error"' in last
