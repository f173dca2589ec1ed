"""Responses that are kept: read, listed, deleted, and continued by a follow-up."""

from __future__ import annotations

import threading
from typing import Any

import openai
import pytest

from paceline.server.responses_api import routes, turn
from paceline.server.responses_api.objects import InputItems
from paceline.server.responses_api.store import ResponseStore
from paceline.server.responses_api.turn import StoredResponse
from paceline.server.run import Server
from paceline.server.settings import ServerSettings

from .conftest import Client, check_body
from .fake import REPLY, FakeAsyncEngine
from .response_calls import ARGUMENTS, CALL, WEATHER, create, prompt_of
from .response_calls import engine as engine
from .response_calls import says as says
from .response_calls import sdk as sdk
from .response_calls import server as server
from .routers import KEY


def test_a_conversation_goes_on(sdk: openai.OpenAI, engine: FakeAsyncEngine) -> None:
    options = {"model": "fake-model", "max_output_tokens": 5}
    first = sdk.responses.create(input="One", instructions="Be brief.", **options)
    second = sdk.responses.create(input="Two", previous_response_id=first.id, **options)
    sdk.responses.create(input="Three", previous_response_id=second.id, **options)
    turns = prompt_of(engine).split("<|im_start|>")
    said = f"assistant\n{REPLY[:5]}<|im_end|>\n"
    one, two, three = (f"user\n{word}<|im_end|>\n" for word in ("One", "Two", "Three"))
    assert turns == ["", one, said, two, said, three, "assistant\n"]


def client_of(server: Server, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def test_kept_responses_can_be_read(sdk: openai.OpenAI, server: Server) -> None:
    response = sdk.responses.create(model="fake-model", input="Hi")
    assert sdk.responses.retrieve(response.id).output == response.output
    with client_of(server, "other") as other:
        for job in (other.responses.retrieve, other.responses.delete):
            with pytest.raises(openai.NotFoundError):
                job(response.id)


def test_kept_responses_can_be_deleted(server: Server) -> None:
    """Not through routers: theirs have no such paths, or leave the query out."""
    asked = [{"role": "user", "content": text} for text in ("One", "Two", "Three")]
    with client_of(server, KEY) as sdk:
        response = sdk.responses.create(model="fake-model", input=asked)
        items = list(sdk.responses.input_items.list(response.id, order="asc", limit=2))
        assert [item.content[0].text for item in items] == ["One", "Two", "Three"]
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
    client, threads = Client(engine, ServerSettings()), {"write": [], "read": []}

    def noting(kind: str, work: Any) -> Any:
        def run(*arguments: Any) -> Any:
            threads[kind].append(threading.current_thread())
            return work(*arguments)

        return run

    monkeypatch.setattr(turn, "write_json", noting("write", turn.write_json))
    monkeypatch.setattr(routes, "items_of", noting("read", routes.items_of))
    first = create(client).json()["id"]
    assert create(client, previous_response_id=first, store=False).status_code == 200
    for ran in threads.values():
        assert ran and threading.main_thread() not in ran
    threads["read"].clear()
    engine.others = 64  # the queue is full
    assert create(client, previous_response_id=first).status_code == 429
    assert not threads["read"], "a refused request does not parse the conversation"
