"""Tokens are written in the call that hands them over; what the client reads stays the same."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest

from paceline.core import OutputDelta, Request, SamplingParams
from paceline.engine.async_engine import Stream
from paceline.server import block_stream, serving, shapes
from paceline.server.connection import BodyWriter
from paceline.server.responses import write_json

from .conftest import CHAT, TEXT, Client, listening
from .fake import REPLY, FakeAsyncEngine
from .test_streaming import events

STREAM: dict[str, Any] = {"stream": True, "max_tokens": 20, "ignore_eos": True, "seed": 1}
USAGE = {"include_usage": True, "continuous_usage_stats": True}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was written directly."""
    bodies: list[bytes] = []
    write = BodyWriter.write

    def noted(self: BodyWriter, body: bytes) -> None:
        bodies.append(body)
        write(self, body)

    monkeypatch.setattr(BodyWriter, "write", noted)
    return bodies


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"n": 2},
        {"return_token_ids": True, "stream_options": {"include_usage": True}},
        {"stream_options": USAGE},
        {"logprobs": True, "top_logprobs": 1},
        {"stream_options": {"include_obfuscation": True}},
    ],
    ids=lambda wanted: ",".join(wanted) or "plain",
)
def test_a_stream_over_a_socket_says_what_one_in_process_says(
    client: Client, written: list[bytes], wanted: dict[str, Any]
) -> None:
    """In process there is no writer: every event takes ASGI's way."""
    body = {**CHAT, **STREAM, **wanted}
    expected = events(client.chat(**{**STREAM, **wanted}))
    assert not written
    with listening(FakeAsyncEngine()) as server:
        got = events(httpx.post(f"{server.url}/v1/chat/completions", json=body, trust_env=False))
    for chunk in expected + got:
        for name in ("id", "created", "metrics", "obfuscation"):
            chunk.pop(name, None)
    assert got == expected
    assert len(written) > 2  # the last step of a choice takes ASGI's way here too


def test_what_cannot_be_written_at_once_keeps_its_place(
    written: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer is not ready while its client reads slowly; the task of the stream writes then."""
    rng, is_ready = random.Random(1), BodyWriter.is_ready
    monkeypatch.setattr(BodyWriter, "is_ready", lambda self: is_ready(self) and rng.random() < 0.7)
    body = {**TEXT, **STREAM, "max_tokens": 450}
    with listening(FakeAsyncEngine()) as server:
        answer = httpx.post(f"{server.url}/v1/completions", json=body, trust_env=False)
    text = "".join(chunk["choices"][0]["text"] for chunk in events(answer))
    reply = REPLY.encode()
    assert text == (reply * (450 // len(reply) + 1))[:450].decode("utf-8", "replace")
    assert 50 < len(written) < 140  # of 150 steps


def test_an_error_of_the_reader_ends_its_stream_alone() -> None:
    class Broken:
        def is_ready(self) -> bool:
            return True

        def take(self, deltas: list[OutputDelta]) -> None:
            raise ValueError("no such shape")

    async def test() -> None:
        owner: Any = FakeAsyncEngine()
        request = Request(id="r#0", prompt_ids=[1], params=SamplingParams())
        stream = Stream(owner, [request])
        stream.read_directly(Broken())
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        for _ in range(2):
            stream.put([OutputDelta(request_id="r#0", choice=0)])
        with pytest.raises(ValueError, match="no such shape"):
            await reading

    asyncio.run(test())


SCORED = {"prompt": "Who leads? " * 40, "echo": True, "logprobs": 20, "max_tokens": 8}
LABELLED = {"max_tokens": 120, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
RESPONSE = {
    "input": "Hi",
    "max_output_tokens": 120,
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 20,
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "body"),
    [("completions", SCORED), ("chat/completions", {**CHAT, **LABELLED}), ("responses", RESPONSE)],
    ids=["completions", "chat", "responses"],
)
def test_many_log_probabilities_are_encoded_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], stream: bool
) -> None:
    on_loop, elsewhere = [0], [0]  # bytes

    def noted(value: object) -> bytes:
        encoded = write_json(value)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            elsewhere.append(len(encoded))
        else:
            on_loop.append(len(encoded))
        return encoded

    for module in (shapes, block_stream, serving):
        monkeypatch.setattr(module, "write_json", noted)
    with listening(FakeAsyncEngine()) as server:
        url = f"{server.url}/v1/{path}"
        answer = httpx.post(url, json={**body, "stream": stream}, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert max(on_loop) < 16_384  # one step of a stream
    if (path, stream) != ("chat/completions", True):  # which has small events alone
        assert max(elsewhere) > 32_768
