"""What an eavesdropper learns of a stream from sizes and times of packets alone, as over TLS."""

from __future__ import annotations

import json
import random
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from paceline.server.run import Server
from paceline.server.settings import ServerSettings
from paceline.server.wire import EventSizes, Frames, padded

from .conftest import CHAT, TEXT, Client, eventually, listening
from .fake import REPLY, FakeAsyncEngine
from .test_streaming import events

TOKENS = 120
STEP, TOKEN_TIME = 0.012, 0.004  # seconds: a step is longer, the more tokens it commits
TICK = 0.025
TEXT_OF = "the quick brown fox jumps over the lazy dog and runs on. "


def bursts(seed: int) -> list[int]:
    """Tokens per round, as drafts of several lengths give them."""
    return random.Random(seed).choices([1, 2, 3, 5], weights=[4, 3, 2, 1], k=TOKENS)


@dataclass(frozen=True)
class Read:
    """One read from the socket: bytes, and seconds since the one before."""

    size: int
    gap: float


def overheard(server: Server, **changes: Any) -> list[Read]:
    """The reads of one stream's body, headers left out."""
    body = json.dumps({**TEXT, "max_tokens": TOKENS, "stream": True, "ignore_eos": True, **changes})
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    port = int(server.url.rsplit(":", 1)[1])
    reads = []
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(head.encode() + body.encode())
        last = time.perf_counter()
        while data := sock.recv(1 << 20):
            now = time.perf_counter()
            if not data.startswith(b"HTTP/"):
                reads.append(Read(len(data), now - last))
            last = now
    return reads


class Eavesdropper:
    """Learns from streams whose rounds it knows what a read looks like that brings so many tokens;
    then tells the rounds of others. A read that looks like nothing it has seen is the most common
    round."""

    def __init__(self, *, times: bool) -> None:
        self._times = times
        self._seen: dict[Any, Counter[int]] = defaultdict(Counter)
        self._all: Counter[int] = Counter()

    def _looks(self, read: Read) -> Any:
        return round((read.gap - STEP) / TOKEN_TIME) if self._times else read.size

    def learn(self, reads: Sequence[Read], rounds: Sequence[int]) -> None:
        for read, count in zip(reads, rounds, strict=False):
            self._seen[self._looks(read)][count] += 1
        self._all.update(rounds)

    def tell(self, reads: Sequence[Read]) -> list[int]:
        usual = self._all
        return [(self._seen.get(self._looks(read)) or usual).most_common(1)[0][0] for read in reads]


def right(told: Sequence[int], rounds: Sequence[int]) -> float:
    """The share of rounds that were told right, in order."""
    return sum(a == b for a, b in zip(told, rounds, strict=False)) / len(rounds)


def constant_guess(rounds: Sequence[int]) -> float:
    return Counter(rounds).most_common(1)[0][1] / len(rounds)


def attack(times: bool = False, steady: float = 0.0, **changes: Any) -> tuple[float, float]:
    """How much of a stream's rounds is told right, and how much a constant guess would."""
    spy, shares = Eavesdropper(times=times), (0.0, 0.0)
    for seed in range(2):
        plan = bursts(seed)
        engine = FakeAsyncEngine(
            step=STEP, token_time=TOKEN_TIME, bursts=plan, reply=TEXT_OF, max_model_len=4096
        )
        with listening(engine, steady_stream=1e3 * steady) as server:
            reads = overheard(server, **changes)
        rounds = rounds_of(plan)
        if seed == 0:
            spy.learn(reads, rounds)
        else:
            shares = right(spy.tell(reads), rounds), constant_guess(rounds)
    return shares


def rounds_of(plan: Sequence[int]) -> list[int]:
    """Tokens of each round until TOKENS have been said."""
    rounds, left = [], TOKENS
    for count in plan:
        rounds.append(min(count, left))
        left -= rounds[-1]
        if not left:
            break
    return rounds


NO_BETTER = 0.1  # a share by which a guess may be better by chance
ATTEMPTS = 4  # on a busy machine a read may hold two rounds, which puts off all that follow


def test_a_plain_stream_tells_its_rounds_by_sizes() -> None:
    assert any(attack()[0] >= 0.95 for _ in range(ATTEMPTS))


def test_a_plain_stream_tells_its_rounds_by_times() -> None:
    """The clock of a busy machine is coarse: clearly better than a guess is enough."""
    attempts = (attack(times=True) for _ in range(ATTEMPTS))
    assert any(told >= guess + 2 * NO_BETTER for told, guess in attempts)


def test_obfuscation_hides_them_from_sizes() -> None:
    told, guess = attack(stream_options={"include_obfuscation": True})
    assert told <= guess + NO_BETTER


@pytest.mark.parametrize("times", [False, True], ids=["sizes", "times"])
def test_steady_streams_hide_them(times: bool) -> None:
    told, guess = attack(times, steady=TICK)
    assert told <= guess + NO_BETTER


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"logprobs": 5},
        {"n": 3},
        {"stream_options": {"include_usage": True}},
        {"prompt": ["a", "b"]},
    ],
)
def test_steady_writes_are_of_one_size(changes: dict[str, Any]) -> None:
    engine = FakeAsyncEngine(step=0.004, bursts=bursts(0), reply=TEXT_OF, max_model_len=4096)
    with listening(engine, steady_stream=10) as server:
        reads = overheard(server, **changes)
    *frames, last = reads
    frame = Counter(read.size for read in frames).most_common(1)[0][0]
    # a late reader finds several frames, and the end of the body, at once
    assert len(frames) >= 5 and all(read.size % frame in (0, 5) for read in frames)
    assert last.size % frame == 5


def test_frames_carry_what_was_put_and_are_of_one_size() -> None:
    rng = random.Random(1)
    for size in (256, 300):
        frames, put, written = Frames(size), b"", b""
        for _ in range(300):
            for _ in range(rng.choice([0, 0, 1, 2])):
                event = b"data: " + b"y" * rng.randrange(1, 500) + b"\n\n"
                put += event
                frames.put(event)
            frame = frames.take()
            assert len(frame) == size
            written += frame
        while frames.has_events:
            written += frames.take()
        *blocks, end = written.split(b"\n\n")
        assert end == b"" and all(block.startswith((b"data: ", b":")) for block in blocks)
        assert b"".join(b + b"\n\n" for b in blocks if b.startswith(b"data: ")) == put


def test_a_comment_that_does_not_fit_goes_on_in_the_next_frame() -> None:
    for missing in (1, 2, 3):
        frames = Frames(64)
        frames.put(b"data: " + b"y" * (64 - missing - 8) + b"\n\n")
        both = frames.take() + (frames.take() if frames.has_events else b"")
        assert len(both) % 64 == 0 and both.endswith(b"\n\n")
        assert all(block[:1] in (b"d", b":") for block in both.split(b"\n\n")[:-1])


def test_padding_fills_to_a_multiple() -> None:

    for length in range(300):
        chunk = padded(b'{"a": "%b"}' % (b"x" * length), 128, 8)
        assert (len(chunk) + 8) % 128 == 0
        assert set(json.loads(chunk)) == {"a", "obfuscation"}


def test_sizes_follow_what_was_asked_for() -> None:
    plain = EventSizes.of(200, logprobs=None, token_ids=False, rounds=False)
    more = [
        EventSizes.of(200, logprobs=3, token_ids=False, rounds=False),
        EventSizes.of(200, logprobs=None, token_ids=True, rounds=False),
        EventSizes.of(200, logprobs=None, token_ids=False, rounds=True),
    ]
    assert all(sizes.frame(0.05, 1) > plain.frame(0.05, 1) for sizes in more)
    assert plain.frame(0.05, 4) > 3 * plain.frame(0.05, 1)
    assert plain.unit(16) > plain.unit(1)


@pytest.mark.parametrize("path", ["chat", "complete"])
@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"logprobs": True},
        {"n": 2},
        {"return_token_ids": True},
        pytest.param({"max_tokens": 45}, marks=pytest.mark.slow),
    ],
    ids=lambda wanted: ",".join(wanted) or "plain",
)
def test_obfuscated_events_are_the_same_with_a_field_more(path: str, wanted: Any) -> None:
    if path == "complete" and "logprobs" in wanted:
        wanted = {"logprobs": 1}
    client = Client(FakeAsyncEngine(), ServerSettings())
    usage = {"include_usage": True, "continuous_usage_stats": True}
    plain = events(getattr(client, path)(stream=True, stream_options=usage, **wanted))
    hidden = getattr(client, path)(
        stream=True, stream_options={**usage, "include_obfuscation": True}, **wanted
    )
    padded = events(hidden)
    for chunk in padded:
        assert isinstance(chunk.pop("obfuscation"), str)
    for chunk in plain + padded:
        for name in ("id", "created", "metrics"):
            chunk.pop(name, None)
    assert padded == plain
    *sizes, usage_size = [len(block) + 2 for block in hidden.text.split("\n\n")[:-2]]
    assert len(set(sizes)) == 1 and not sizes[0] % 128 and not usage_size % sizes[0]
    again = getattr(client, path)(
        stream=True, stream_options={**usage, "include_obfuscation": False}, **wanted
    )
    assert "obfuscation" not in again.text


@pytest.fixture(scope="module", params=[0, 20], ids=["as they come", "steady"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with listening(FakeAsyncEngine(), steady_stream=request.param) as running:
        yield running


def test_the_official_client_reads_both_unchanged(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        for obfuscated in (False, True):
            options = {"include_usage": True, "include_obfuscation": obfuscated}
            stream = client.chat.completions.create(
                model="fake-model",
                messages=CHAT["messages"],
                max_tokens=14,
                n=2,
                logprobs=True,
                stream=True,
                stream_options=options,
            )
            chunks = list(stream)
            for index in (0, 1):
                own = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == index]
                text = "".join(choice.delta.content or "" for choice in own)
                assert text == REPLY.encode()[:14].decode()
                assert own[-1].finish_reason == "length"
            assert chunks[-1].usage.completion_tokens == 28


def test_a_steady_stream_says_what_went_wrong() -> None:
    with (
        listening(FakeAsyncEngine(fail=True), steady_stream=10) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        stream = client.chat.completions.create(
            model="fake-model", messages=CHAT["messages"], stream=True
        )
        with pytest.raises(openai.APIError):
            list(stream)


def test_a_steady_stream_that_hangs_up_frees_its_request() -> None:
    engine = FakeAsyncEngine(step=0.01)
    body = {**TEXT, "max_tokens": 500, "ignore_eos": True, "stream": True}
    with listening(engine, steady_stream=10) as server:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
            next(response.iter_bytes())
        eventually(lambda: engine.stats().running == 0)
        assert len(engine.aborted) == 1


def test_a_drain_lets_steady_streams_end() -> None:
    engine = FakeAsyncEngine(step=0.02)
    body = {**TEXT, "max_tokens": 60, "ignore_eos": True, "stream": True}
    with (
        listening(engine, steady_stream=10) as server,
        httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        server.stop()
        said = [line for line in lines if line.startswith("data: ")]
    assert said[-1] == "data: [DONE]"
    assert json.loads(said[-2][6:])["choices"][0]["finish_reason"] == "length"
