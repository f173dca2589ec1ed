"""Tokens are written on the engine's thread; what the client reads stays the same."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import uvloop

from paceline.core import OutputDelta, Request, SamplingParams
from paceline.engine.stream import Stream
from paceline.server import block_stream, serving, shapes
from paceline.server.body_writer import BodyWriter, OpenSocket
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


class Reader:
    """Notes what it takes; raises an error where `broken`."""

    def __init__(self, *, off_loop: bool, broken: bool = False) -> None:
        self.off_loop, self.broken, self.ready = off_loop, broken, True
        self.taken: list[str] = []

    def is_ready(self) -> bool:
        return self.ready

    def take(self, deltas: list[OutputDelta]) -> None:
        if self.broken:
            raise ValueError("no such shape")
        self.taken += [delta.text for delta in deltas]


def stream_with(reader: Reader) -> Stream:
    stream = Stream(
        FakeAsyncEngine().abort, [Request(id="r#0", prompt_ids=[1], params=SamplingParams())]
    )
    stream.read_directly(reader)
    return stream


def delta(text: str) -> list[OutputDelta]:
    return [OutputDelta(request_id="r#0", choice=0, text=text)]


@pytest.mark.parametrize("off_loop", [False, True])
def test_an_error_of_the_reader_ends_its_stream_alone(off_loop: bool) -> None:
    async def test() -> None:
        stream = stream_with(Reader(off_loop=off_loop, broken=True))
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        for text in "ab":
            left = stream.offer(delta(text))
            assert left is not None
            stream.put(left)
        with pytest.raises(ValueError, match="no such shape"):
            await reading

    asyncio.run(test())


def test_nothing_overtakes_what_is_on_its_way_to_the_loop() -> None:
    """The engine's thread gives nothing to a reader before the task of the stream waits again."""

    async def test() -> None:
        reader = Reader(off_loop=True)
        stream = stream_with(reader)
        early = stream.offer(delta("a"))  # before the task has begun to read
        assert early == delta("a")
        stream.put(early)
        assert await anext(stream) == delta("a")
        assert stream.offer(delta("b")) == delta("b")  # the task has "a" in its hands
        stream.put(delta("b"))
        assert await anext(stream) == delta("b")
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        assert stream.offer(delta("c")) is None
        reader.ready = False
        assert stream.offer(delta("d")) == delta("d")
        reader.ready = True
        assert stream.offer(delta("e")) == delta("e")  # "d" is not with the loop yet
        for text in "de":
            stream.put(delta(text))
        assert [await reading, await anext(stream)] == [delta("d"), delta("e")]
        assert reader.taken == ["c"]

    asyncio.run(test())


def test_a_full_socket_leaves_the_rest_to_the_loop() -> None:
    """A client that reads nothing for a while gets every byte in order, from the engine's thread
    or from the loop."""

    class Pair(asyncio.Protocol):
        socket: OpenSocket | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast(asyncio.Transport, transport)
            self.socket = OpenSocket.of(self.transport)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        _, protocol = await loop.create_connection(Pair, sock=ours)
        flow = SimpleNamespace(write_paused=False)
        cycle: Any = SimpleNamespace(
            response_started=True, response_complete=False, chunked_encoding=True,
            disconnected=False, flow=flow, transport=protocol.transport,
        )  # fmt: skip
        writer = BodyWriter(cycle, protocol.socket, loop)
        sent = got = b""
        while writer.is_ready():
            body = bytes([65 + len(sent) % 26]) * 50_000
            writer.write(body)
            sent += b"%x\r\n%b\r\n" % (len(body), body)
        while len(got) < len(sent):
            await asyncio.sleep(0)
            with contextlib.suppress(BlockingIOError):
                got += theirs.recv(2**20)
        assert got == sent
        assert writer.is_ready()
        assert protocol.socket is not None
        protocol.socket.close()
        writer.write(b"nobody reads this")
        protocol.transport.close()
        theirs.close()

    uvloop.run(test())


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
