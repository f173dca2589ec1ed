"""OpenAI's Responses API, with the official client over a real socket and by raw requests."""

from __future__ import annotations

import json
import time
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from paceline.server.responses_api.items import ITEMS, Conversation
from paceline.server.responses_api.objects import ResponseObject
from paceline.server.settings import ServerSettings

from .conftest import Client, check_body
from .fake import REPLY, FakeAsyncEngine
from .response_calls import (
    ARGUMENTS,
    CALL,
    REASONED,
    WEATHER,
    create,
    prompt_of,
    thinking_tokenizer,
)
from .response_calls import engine as engine
from .response_calls import says as says
from .response_calls import sdk as sdk
from .response_calls import server as server
from .routers import Way


class Person(BaseModel):
    name: str
    age: int


def exactly(text: str) -> dict[str, Any]:
    """Options that end the fake engine's answer after `text`."""
    return {"max_output_tokens": len(text.encode())}


def test_the_first_example_of_the_readme(sdk: openai.OpenAI, engine: FakeAsyncEngine) -> None:
    response = sdk.responses.create(
        model="fake-model",
        instructions="You are a coding assistant that talks like a pirate.",
        input="How do I check if a Python object is an instance of a class?",
    )
    assert response.output_text == REPLY * 3 and response.status == "completed"
    assert response.usage.output_tokens == engine.submitted[-1].output_len
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.metrics["speculative_decoding"]["num_spec_tokens"] == 4
    assert prompt_of(engine) == (
        "<|im_start|>system\nYou are a coding assistant that talks like a pirate.<|im_end|>\n"
        "<|im_start|>user\nHow do I check if a Python object is an instance of a class?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_response_has_the_shape_of_the_schema(client: Client) -> None:
    response = create(client, metadata={"a": "b"}, temperature=0.5)
    assert response.status_code == 200, response.text
    body = response.json()
    check_body(body, ResponseObject)
    assert body["id"].startswith("resp_") and body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["content"][0]["text"] == REPLY[:5]
    assert (body["metadata"], body["temperature"]) == ({"a": "b"}, 0.5)


def test_events_of_a_stream_come_in_order(sdk: openai.OpenAI) -> None:
    events = list(sdk.responses.create(model="fake-model", input="Hi", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert list(dict.fromkeys(kinds)) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    done = next(e for e in events if e.type == "response.output_text.done")
    assert deltas == done.text == events[-1].response.output_text == REPLY * 3
    assert {e.item_id for e in events if hasattr(e, "item_id")} == {
        events[-1].response.output[0].id
    }


def test_the_stream_helper_and_logprobs(sdk: openai.OpenAI) -> None:
    options = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    with sdk.responses.stream(model="fake-model", input="Hi", **options) as stream:
        final = stream.get_final_response()
    whole = sdk.responses.create(model="fake-model", input="Hi", **options)
    told = final.output[0].content[0].logprobs
    assert told == whole.output[0].content[0].logprobs and len(told) > 20
    assert told[0].token == "E" and len(told[0].top_logprobs) == 2


def test_parse_gives_a_model(sdk: openai.OpenAI, says: Any) -> None:
    text = '{"name": "Ada", "age": 36}'
    says(text)
    response = sdk.responses.parse(
        model="fake-model", input="Who?", text_format=Person, **exactly(text)
    )
    assert response.output_parsed == Person(name="Ada", age=36)


def test_tools_are_called_and_answered(
    sdk: openai.OpenAI, engine: FakeAsyncEngine, says: Any, way: Way
) -> None:
    says(CALL)
    asked = [{"role": "user", "content": "Weather in Köln?"}]
    options = {"model": "fake-model", "tools": [WEATHER], **exactly(CALL)}
    response = sdk.responses.create(input=asked, **options)
    assert [item.type for item in response.output] == ["message", "function_call"]
    call = response.output[1]
    assert (call.name, call.arguments) == ("get_weather", ARGUMENTS)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees"}
    sdk.responses.create(input=[*asked, *response.output, output], **options)
    whole = prompt_of(engine)
    if "inputs without a message" not in way.drops:
        sdk.responses.create(input=[output], previous_response_id=response.id, **options)
        assert prompt_of(engine) == whole
    for part in ("Weather in Köln?", "Sure.", ARGUMENTS, "12 degrees"):
        assert part in whole


def test_a_streamed_call(sdk: openai.OpenAI, says: Any) -> None:
    says(CALL)
    events = list(
        sdk.responses.create(
            model="fake-model", input="Hi", tools=[WEATHER], stream=True, **exactly(CALL)
        )
    )
    deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(e.delta for e in deltas) == ARGUMENTS and deltas[0].output_index == 1
    added = [e.item for e in events if e.type == "response.output_item.added"]
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert [item.id for item in added] == [item.id for item in done]
    assert (added[1].arguments, done[1].arguments) == ("", ARGUMENTS)


def test_reasoning_is_an_item_of_its_own() -> None:
    engine = FakeAsyncEngine(reply=REASONED)
    engine.engine.tokenizer = thinking_tokenizer(engine.engine.tokenizer)
    client = Client(engine, ServerSettings())
    body = create(client, max_output_tokens=len(engine.reply)).json()
    check_body(body, ResponseObject)
    thought, said = body["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert said["content"][0]["text"] == "Yes."
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}


def test_a_thought_that_was_cut_short_is_not_given_to_a_later_answer() -> None:
    engine = FakeAsyncEngine(reply=REASONED, max_model_len=4096)
    engine.engine.tokenizer = thinking_tokenizer(engine.engine.tokenizer)
    client, asked = Client(engine, ServerSettings()), [{"role": "user", "content": "Hi"}]
    cut = create(client, input=asked, max_output_tokens=len("<think>\nH")).json()
    assert [item["type"] for item in cut["output"]] == ["reasoning"]
    more = {"max_output_tokens": len(REASONED), "previous_response_id": cut["id"]}
    whole = create(client, input=asked, **more).json()
    create(client, input=asked, previous_response_id=whole["id"])
    followed = prompt_of(engine)
    create(client, input=[*asked, *cut["output"], *asked, *whole["output"], *asked])
    assert prompt_of(engine) == followed
    assert followed.count("<think>") == 1 and "<think>Hm.</think>Yes." in followed


@pytest.mark.parametrize("burst", [1, 3, 7, 100])
def test_logprobs_are_those_of_the_text_beside_reasoning_and_calls(burst: int) -> None:
    reply = f"<think>\nHm.\n</think>\n\nGruß! {CALL}"
    engine = FakeAsyncEngine(reply=reply, bursts=(burst,), max_model_len=4096)
    engine.engine.tokenizer = thinking_tokenizer(engine.engine.tokenizer)
    client = Client(engine, ServerSettings())
    options = {
        "include": ["message.output_text.logprobs"],
        "max_output_tokens": len(reply.encode()),
        "tools": [WEATHER],
    }
    body = create(client, **options).json()
    _, said, call = body["output"]
    part = said["content"][0]
    assert (part["text"], call["arguments"]) == ("Gruß! Sure.", ARGUMENTS)
    told = b"".join(bytes(row["bytes"]) for row in part["logprobs"])
    assert told.decode() == part["text"]
    lines = create(client, **options, stream=True).text.split("\n\n")
    events = [json.loads(line.split("\ndata: ")[1]) for line in lines if line]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [row for event in deltas for row in event["logprobs"]] == part["logprobs"]
    assert "".join(event["delta"] for event in deltas) == part["text"]
    done = next(event for event in events if event["type"] == "response.output_text.done")
    assert done["logprobs"] == part["logprobs"]
    added = [event["part"] for event in events if event["type"] == "response.content_part.added"]
    assert [part["text"] for part in added] == ["", ""]


# -- refusals and failures ------------------------------------------------------------------------

PART = {"type": "input_image", "image_url": "data:"}
CALL_ITEM = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "no JSON"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"input": [{"role": "user", "content": [PART]}]}, "input[0].content[0].type"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": []}, "input"),
    ({"input": [{"role": "user", "content": "Hi"}, CALL_ITEM]}, "input[1].arguments"),
    ({"truncation": "auto"}, "truncation"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"max_output_tokens": 5000}, "max_output_tokens"),
    ({"input": "Hi" * 400}, "input"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
    (
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "what"}}}},
        "text.format.schema.type",
    ),
    ({"tools": [{**WEATHER, "parameters": {"type": "array"}}]}, "tools[0].parameters.type"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}},
        "tool_choice.name",
    ),
    ({"instructions": "refuse"}, "input"),
    ({"messages": [{"role": "user", "content": "Hi"}]}, "messages"),
]


@pytest.mark.parametrize(("change", "field"), REFUSED, ids=[field for _, field in REFUSED])
def test_what_is_not_served_is_refused_by_name(
    client: Client, change: dict[str, Any], field: str
) -> None:
    response = create(client, **change)
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == field, error
    assert error["message"].startswith(field)


def test_more_items_than_the_context_has_tokens_are_refused_at_once(client: Client) -> None:
    item = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x" * 8}]}
    for count in (513, 12_000):  # the context has 512 tokens
        error = create(client, input=[item] * count).json()["error"]
        assert error["param"] == "input" and error["code"] == "context_length_exceeded"
        assert f"got {count} messages; expected at most 512" in error["message"]


def test_texts_of_reasoning_are_joined_once() -> None:
    """Adding each text to the ones before took the square of their number."""
    texts = [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x" * 400}]}]
    conversation = Conversation()
    begun = time.process_time()
    conversation.add(ITEMS.validate_python(texts * 10_000), "input")
    conversation.add(ITEMS.validate_python([{"role": "assistant", "content": "Yes."}]), "input")
    assert conversation.messages[0]["reasoning_content"] == "x" * 4_000_000
    assert time.process_time() - begun < 1


def test_a_failing_engine_ends_the_stream_with_an_event() -> None:
    client = Client(FakeAsyncEngine(fail=True), ServerSettings())
    assert create(client).status_code == 500
    lines = create(client, stream=True).text.split("\n\n")
    events = [json.loads(line.split("\ndata: ")[1]) for line in lines if line]
    assert [event["type"] for event in events[2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["error"]["code"] == "engine_failed"
    assert client.get(f"/v1/responses/{events[0]['response']['id']}").status_code == 404


def test_padded_events_have_one_size(client: Client) -> None:
    options = {"stream": True, "stream_options": {"include_obfuscation": True}}
    text = create(client, max_output_tokens=40, **options).text
    sizes = {len(event.encode()) + 2 for event in text.split("\n\n") if ".delta" in event}
    assert len(sizes) == 1 and sizes.pop() % 128 == 0
