"""OpenAI's Responses API, with the official client over a real socket and by raw requests."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from paceline.server.responses_api import routes, turn
from paceline.server.responses_api.items import ITEMS, Conversation
from paceline.server.responses_api.objects import InputItems, ResponseObject
from paceline.server.responses_api.store import ResponseStore
from paceline.server.responses_api.turn import StoredResponse
from paceline.server.run import Server
from paceline.server.settings import ServerSettings

from .conftest import Client, check_body, listening
from .fake import REPLY, FakeAsyncEngine

ARGUMENTS = '{"city": "Köln"}'
CALL = f'Sure.\n<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
REASONED = "<think>\nHm.\n</think>\n\nYes."
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
BODY = {"model": "fake-model", "input": "Hi", "max_output_tokens": 5}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def engine() -> FakeAsyncEngine:
    return FakeAsyncEngine(max_model_len=4096)


@pytest.fixture(scope="module")
def server(engine: FakeAsyncEngine) -> Iterator[Server]:
    with listening(engine, api_keys=("secret", "other")) as running:
        yield running


@pytest.fixture
def says(engine: FakeAsyncEngine) -> Iterator[Any]:
    """Let the model say something else."""

    def say(text: str) -> None:
        engine.reply = text

    yield say
    engine.reply = REPLY


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as made:
        yield made


def exactly(text: str) -> dict[str, Any]:
    """Options that end the fake engine's answer after `text`."""
    return {"max_output_tokens": len(text.encode())}


def create(client: Client, **changes: Any) -> Any:
    return client.post("/v1/responses", json={**BODY, **changes})


def prompt_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.submitted[-1].prompt_ids)


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
    sdk: openai.OpenAI, engine: FakeAsyncEngine, says: Any
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


def thinking_tokenizer(tokenizer: Any) -> Any:
    made = copy.deepcopy(tokenizer)
    made.chat_template += "{# <think></think> #}"
    return made


# -- kept responses -------------------------------------------------------------------------------


def test_a_conversation_goes_on(sdk: openai.OpenAI, engine: FakeAsyncEngine) -> None:
    options = {"model": "fake-model", "max_output_tokens": 5}
    first = sdk.responses.create(input="One", instructions="Be brief.", **options)
    second = sdk.responses.create(input="Two", previous_response_id=first.id, **options)
    sdk.responses.create(input="Three", previous_response_id=second.id, **options)
    turns = prompt_of(engine).split("<|im_start|>")
    said = f"assistant\n{REPLY[:5]}<|im_end|>\n"
    one, two, three = (f"user\n{word}<|im_end|>\n" for word in ("One", "Two", "Three"))
    assert turns == ["", one, said, two, said, three, "assistant\n"]


def test_kept_responses_can_be_read_and_deleted(sdk: openai.OpenAI, server: Server) -> None:
    asked = [{"role": "user", "content": text} for text in ("One", "Two", "Three")]
    response = sdk.responses.create(model="fake-model", input=asked)
    assert sdk.responses.retrieve(response.id).output == response.output
    items = list(sdk.responses.input_items.list(response.id, order="asc", limit=2))
    assert [item.content[0].text for item in items] == ["One", "Two", "Three"]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="other", max_retries=0) as other:
        for job in (other.responses.retrieve, other.responses.delete):
            with pytest.raises(openai.NotFoundError):
                job(response.id)
    sdk.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError, match=f"no response '{response.id}' here"):
        sdk.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError, match="previous_response_id: no response"):
        sdk.responses.create(model="fake-model", input="Hi", previous_response_id=response.id)


def test_what_is_not_to_be_kept_is_not(sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(model="fake-model", input="Hi", store=False)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(response.id)


def test_the_store_is_bounded_in_number_and_bytes() -> None:
    store = ResponseStore(3, 10_000)

    def put(name: str, size: int = 0, previous: str | None = None) -> None:
        store.put(name, StoredResponse("key", previous, b"", (), (), 1024 + size, 0))

    for name, previous in (("a", None), ("b", "a"), ("c", None)):
        put(name, previous=previous)
    store.chain("b", "key")  # keeps `a` too
    put("d")
    assert [len(store.chain(name, "key")) for name in ("a", "b", "d")] == [1, 2, 1]
    put("large", 7000)
    assert len(store) == 2 and store.bytes <= 10_000
    put("too large", 10_000)
    assert len(store) == 0 and store.bytes == 0


def test_a_listing_has_pages(client: Client) -> None:
    asked = [{"role": "user", "content": str(place)} for place in range(5)]
    path = f"/v1/responses/{create(client, input=asked).json()['id']}/input_items"
    page = client.get(path, params={"limit": 2}).json()
    check_body(page, InputItems)
    assert [item["content"][0]["text"] for item in page["data"]] == ["4", "3"]
    assert page["has_more"] and page["last_id"] == page["data"][-1]["id"]
    rest = client.get(path, params={"limit": 9, "after": page["last_id"]}).json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["2", "1", "0"]
    assert not rest["has_more"]
    for wrong in (
        {"limit": "0"},
        {"limit": "1" * 5000},
        {"limit": "²"},
        {"order": "up"},
        {"after": "x"},
        {"page": "1"},
    ):
        error = client.get(path, params=wrong).json()["error"]
        assert error["param"] == next(iter(wrong))


def test_a_follow_up_gets_what_the_prompt_needs(engine: FakeAsyncEngine) -> None:
    client = Client(engine, ServerSettings(max_body_bytes=40_000))
    said = {"type": "output_text", "text": "One", "annotations": [{"a": 1}] * 300}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x" * 30_000}]}
    asked = [{"role": "assistant", "content": [said]}, {"role": "user", "content": "Hi"}, thought]
    first = create(client, input=asked).json()["id"]
    body = create(client, input="Go on", previous_response_id=first)
    assert body.status_code == 200, body.text
    turns = [part.split("\n")[1] for part in prompt_of(engine).split("<|im_start|>")[1:-1]]
    assert turns == [f"{text}<|im_end|>" for text in ("One", "Hi", REPLY[:5], "Go on")]
    items = client.get(f"/v1/responses/{first}/input_items").json()["data"]
    assert "x" * 30_000 in str(items) and "annotations" not in str(items)


def test_a_conversation_goes_on_up_to_a_bound(engine: FakeAsyncEngine) -> None:
    client = Client(engine, ServerSettings(max_body_bytes=3000))
    response = create(client, input="x" * 1500)
    response = create(client, input="y" * 1500, previous_response_id=response.json()["id"])
    assert response.status_code == 200, response.text
    last = response.json()["id"]
    error = create(client, input="Hi", previous_response_id=last).json()["error"]
    assert error["param"] == "previous_response_id" and "at most 3000 bytes" in error["message"]
    client = Client(FakeAsyncEngine(), ServerSettings())  # the context has 512 tokens
    many = [{"type": "reasoning"}] * 300 + [{"role": "assistant", "content": "Yes."}]
    first = create(client, input=many).json()["id"]
    second = create(client, input=many, previous_response_id=first).json()["id"]
    error = create(client, input="Hi", previous_response_id=second).json()["error"]
    assert error["param"] == "previous_response_id" and "at most 512 items" in error["message"]


def test_a_call_that_was_cut_is_left_out(
    client: Client, engine: FakeAsyncEngine, says: Any
) -> None:
    says(CALL)
    client = Client(engine, ServerSettings())
    cut = create(client, tools=[WEATHER], max_output_tokens=len(CALL.encode()) - 20).json()
    assert cut["output"][1]["status"] == "incomplete"
    assert cut["output"][1]["arguments"] in ARGUMENTS[:-1]
    response = create(client, input="Again", previous_response_id=cut["id"], tools=[WEATHER])
    assert response.status_code == 200, response.text
    assert "Sure." in prompt_of(engine) and "Köl" not in prompt_of(engine)


def test_responses_are_kept_and_continued_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeAsyncEngine()
    client, threads = Client(engine, ServerSettings()), []

    def noting(work: Any) -> Any:
        def run(*arguments: Any) -> Any:
            threads.append(threading.current_thread())
            return work(*arguments)

        return run

    monkeypatch.setattr(turn, "write_json", noting(turn.write_json))
    first = create(client).json()["id"]
    monkeypatch.setattr(routes, "items_of", noting(routes.items_of))
    assert create(client, previous_response_id=first, store=False).status_code == 200
    assert len(threads) == 4 and threading.main_thread() not in threads
    engine.others = 64  # the queue is full
    assert create(client, previous_response_id=first).status_code == 429
    assert len(threads) == 4, "a refused request does not parse the conversation"


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
    ({"messages": []}, "messages"),
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
