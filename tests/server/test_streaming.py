"""Server-sent events, as OpenAI sends them, and what happens when nobody listens any more."""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import httpx
import pytest

from paceline.core import FinishReason, OutputDelta
from paceline.engine.tool_calls import Thinking
from paceline.engine.tool_formats import HERMES, THINK, ToolFormat
from paceline.server import shapes
from paceline.server.app import create_app
from paceline.server.parsing import AnswerFormat
from paceline.server.responses import AnswerChunk, write_json
from paceline.server.settings import ServerSettings
from paceline.server.shapes import ChatShape, CompletionShape, Shape

from .conftest import CHAT, TEXT, Client, check_body, eventually, listening
from .fake import REPLY, FakeAsyncEngine


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    blocks = response.text.split("\n\n")
    assert blocks.pop() == "" and blocks.pop() == "data: [DONE]"
    chunks = [json.loads(block.removeprefix("data: ")) for block in blocks]
    for chunk in chunks:
        check_body(chunk, AnswerChunk)
    return chunks


@pytest.mark.parametrize("shape_of", [ChatShape, CompletionShape])
@pytest.mark.parametrize("token_ids", [False, True])
@pytest.mark.parametrize(
    "text", ["Hi", 'a "b" \\ {}\n', "é 快 \U0001f600", "\u2028", "\0text\0[-1]"]
)
def test_chunks_of_plain_text_equal_those_that_are_encoded_whole(
    shape_of: type[Shape], token_ids: bool, text: str
) -> None:
    job: Any = SimpleNamespace(id="x-1", created=1, model="é\0text\0", choices=[None] * 2)
    shape = shape_of(job, cast(Any, None), "fp", token_ids)
    for index in range(2):
        delta = OutputDelta(request_id="r", choice=index, text=text, token_ids=[3, 40])
        body = shape.chunk(index, delta)
        assert body is not None
        encoded = shape.delta_json(index, delta)
        assert encoded.isascii() and encoded == shape.chunk_json(body)


@pytest.mark.parametrize("token_ids", [False, True])
@pytest.mark.parametrize("tools", [None, HERMES], ids=["text", "calls"])
def test_chunks_of_thoughts_equal_those_that_are_encoded_whole(
    monkeypatch: pytest.MonkeyPatch, tools: ToolFormat | None, token_ids: bool
) -> None:
    form, rng = AnswerFormat(tools, THINK, Thinking.MAYBE), random.Random(2)
    job: Any = SimpleNamespace(id="x-1", created=1, model="m", choices=[None])
    monkeypatch.setattr(ToolFormat, "new_id", lambda self: "call_1")
    text = '<think>\nHm, "é" \n or 快?\0text\0\n</think>\n\nA < b.  Yes\n no.' * 4
    text += '\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    for _ in range(20):
        fast, whole = (ChatShape(job, cast(Any, None), "fp", token_ids, form) for _ in range(2))
        encode, left, texts, templates = Mock(wraps=write_json), text, 0, set()
        while left:
            size = rng.randint(1, 4)
            piece, left = left[:size], left[size:]
            reason = None if left else FinishReason.STOP
            delta = OutputDelta(
                request_id="r", choice=0, text=piece, token_ids=(3, 40), finish_reason=reason
            )
            body = whole.chunk(0, delta)
            before = encode.call_count
            with monkeypatch.context() as patch:
                patch.setattr(shapes, "write_json", encode)
                encoded = fast.delta_json(0, delta)
            assert encoded == (whole.chunk_json(body) if body else b"")
            names = tuple(body["choices"][0]["delta"]) if body else ()
            if names in (("content",), ("reasoning_content",)):
                assert encode.call_count == before + (names not in templates)
                templates.add(names)
                texts += 1
        assert texts > 30 and len(templates) == 2


def test_chat_stream_in_openais_order(client: Client) -> None:
    chunks = events(client.chat(max_tokens=8, stream=True))
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    # eight tokens in bursts of three; the last one is half a character, given out at the end
    assert [delta["content"] for delta in deltas[1:-1]] == ["Ein", " Gr", "u�"]
    assert deltas[-1] == {}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * 4 + ["length"]
    assert "usage" not in chunks[0] and "metrics" not in chunks[-1]


def test_usage_comes_last_and_only_when_asked_for(client: Client) -> None:
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(client.chat(**asked))
    assert all(chunk["usage"] is None for chunk in chunks)
    whole = client.chat().json()
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    counts = last["metrics"]["speculative_decoding"]
    assert counts == whole["metrics"]["speculative_decoding"]


@pytest.mark.parametrize("path", ["chat", "complete"])
def test_continuous_usage_counts_each_choice(client: Client, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    ask = getattr(client, path)
    *chunks, last = events(ask(max_tokens=8, n=2, stream=True, stream_options=options))
    prompt = len(client.engine.submitted[0].prompt_ids)
    for index in range(2):
        usages = [c["usage"] for c in chunks if c["choices"][0]["index"] == index]
        counts = [usage["completion_tokens"] for usage in usages]
        assert counts == ([0, 3, 6, 8, 8] if path == "chat" else [3, 6, 8, 8])
        assert all(u["prompt_tokens"] == prompt for u in usages)
        assert all(u["total_tokens"] == prompt + u["completion_tokens"] for u in usages)
    assert last["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("path", ["chat", "complete"])
def test_the_stream_says_what_the_whole_answer_says(client: Client, path: str) -> None:
    ask = getattr(client, path)
    options = {"max_tokens": 40, "n": 2, "return_token_ids": True, "ignore_eos": True}
    options |= {"logprobs": True, "top_logprobs": 1} if path == "chat" else {"logprobs": 1}
    whole = ask(**options).json()
    chunks = events(ask(stream=True, **options))
    for choice in whole["choices"]:
        parts = [c for e in chunks for c in e["choices"] if c["index"] == choice["index"]]
        if path == "chat":
            assert (
                "".join(p["delta"].get("content", "") for p in parts)
                == choice["message"]["content"]
            )
            rows = [row for p in parts if p["logprobs"] for row in p["logprobs"]["content"]]
            assert rows == choice["logprobs"]["content"]
        else:
            assert "".join(part["text"] for part in parts) == choice["text"]
            for key, values in choice["logprobs"].items():
                assert [v for p in parts if p["logprobs"] for v in p["logprobs"][key]] == values
        assert [i for p in parts for i in p.get("token_ids", ())] == choice["token_ids"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"] == "length"


def test_tokens_without_text_yet_are_not_an_empty_chunk(client: Client) -> None:
    chunks = events(client.complete(max_tokens=12, stream=True, speculative="off"))
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == REPLY.encode()[:12].decode("utf-8", "replace")
    assert all(texts[:-1]) and texts[-1] == ""
    with_ids = events(
        client.complete(max_tokens=12, stream=True, speculative="off", return_token_ids=True)
    )
    assert sum(len(c["choices"][0].get("token_ids", ())) for c in with_ids) == 12


def test_a_batch_streams_every_prompt(client: Client) -> None:
    chunks = events(client.complete(prompt=["a", "b", "c"], max_tokens=3, n=2, stream=True))
    assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == set(range(6))


def test_refusals_come_before_the_stream(client: Client) -> None:
    response = client.chat(stream=True, max_tokens=513)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_tokens"


def test_an_engine_failure_ends_the_stream_with_an_error_event() -> None:
    client = Client(FakeAsyncEngine(fail=True), ServerSettings())
    response = client.chat(stream=True)
    assert response.status_code == 200
    event = json.loads(response.text.removeprefix("data: "))
    assert event["error"]["type"] == "server_error"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["Hi", ["a", "b", "c"]])
def test_a_client_that_hangs_up_frees_its_request(stream: bool, prompt: Any) -> None:
    engine = FakeAsyncEngine(step=0.01)
    body = {**TEXT, "prompt": prompt, "max_tokens": 500, "ignore_eos": True, "stream": stream}
    with listening(engine) as server:
        with httpx.Client(base_url=server.url, trust_env=False) as http:
            if stream:
                with http.stream("POST", "/v1/completions", json=body) as response:
                    next(response.iter_lines())
            else:
                with pytest.raises(httpx.ReadTimeout):
                    http.post("/v1/completions", json=body, timeout=0.2)
            eventually(lambda: engine.stats().running == 0, seconds=1)
        expected = 1 if isinstance(prompt, str) else 3
        assert len(engine.aborted) == expected
        assert all(request.output_len < 300 for request in engine.submitted)


def test_a_stream_cancelled_before_its_first_byte_frees_its_request() -> None:
    engine = FakeAsyncEngine(step=0.01)
    body = json.dumps({**TEXT, "max_tokens": 500, "ignore_eos": True, "stream": True}).encode()
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/completions",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }

    async def test() -> None:
        messages = [{"type": "http.request", "body": body}]
        sending = asyncio.Event()

        async def receive() -> Any:
            return messages.pop() if messages else await asyncio.Event().wait()

        async def send(_: Any) -> None:
            sending.set()
            await asyncio.Event().wait()

        request = asyncio.create_task(create_app(engine, ServerSettings())(scope, receive, send))
        await asyncio.wait_for(sending.wait(), 20)
        assert engine.stats().running == 1
        request.cancel()
        await asyncio.wait([request])
        assert engine.stats().running == 0 and len(engine.aborted) == 1

    asyncio.run(test())


def test_tokens_are_sent_as_they_come() -> None:
    engine = FakeAsyncEngine(step=0.05)
    body = {**CHAT, "max_tokens": 30, "stream": True}
    with (
        listening(engine) as server,
        httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=body, trust_env=False
        ) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        assert engine.stats().running == 1  # the first token is here, the others are to come
        assert sum(line.startswith("data: ") for line in lines) > 8


@pytest.mark.parametrize(
    ("text", "stop", "reason"),
    [
        ('<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>', None, "tool_calls"),
        ('<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n', "</tool_call>", "stop"),
        ('<tool_call>\n{"name": "look", "arguments": {"a":', " 1", "stop"),
        ('<tool_call>\n{"name": "look", "arguments": {"a":', 7, "stop"),
        ("Rome", None, "stop"),
    ],
)
def test_tool_calls_end_an_answer_only_where_they_can_be_run(
    text: str, stop: str | int | None, reason: str
) -> None:
    last = OutputDelta(
        request_id="r", choice=0, text=text, finish_reason=FinishReason.STOP, stop_reason=stop
    )
    job: Any = SimpleNamespace(id="x-1", created=1, model="m", choices=[None])
    shape = ChatShape(job, cast(Any, None), "fp", False, AnswerFormat(HERMES))
    shape.chunk(0, last)
    (choice,) = shape.last(0, last)["choices"]
    assert choice["finish_reason"] == reason


def test_a_chunk_adds_to_a_call_once() -> None:
    """Some clients read only the first entry of a chunk's calls."""
    arguments = '{"city": "Rome"}'
    call = f'<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call>'
    engine = FakeAsyncEngine(reply=call * 2, max_model_len=4096, bursts=(40,))
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    options = {"tools": [tool], "max_tokens": 2 * len(call), "stream": True}
    told = Client(engine, ServerSettings()).chat(**options).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in told if line.startswith("data: {")]
    pieces = [c["choices"][0]["delta"].get("tool_calls", []) for c in chunks if c["choices"]]
    assert any(len(added) == 1 and "name" in added[0]["function"] for added in pieces)
    assert all(len({piece["index"] for piece in added}) == len(added) for added in pieces)
    told = [piece["function"]["arguments"] for added in pieces for piece in added]
    assert "".join(told) == arguments * 2
