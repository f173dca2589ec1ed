"""The official client, unchanged, over a real socket: to the server, and through routers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from paceline.server.run import Server

from .conftest import eventually, listening
from .fake import REPLY, FakeAsyncEngine
from .routers import KEY, MESSAGES, Way


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with listening(FakeAsyncEngine(), api_keys=(KEY,)) as running:
        yield running


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as made:
        yield made


@contextmanager
def reached(engine: FakeAsyncEngine, way: Way, log: Path) -> Iterator[openai.OpenAI]:
    """A client of a server of its own over `engine`."""
    with (
        listening(engine, api_keys=(KEY,)) as server,
        way.to(server.url, log) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client,
    ):
        yield client


def test_chat(client: openai.OpenAI, way: Way) -> None:
    answer = client.chat.completions.create(
        model="fake-model",
        messages=MESSAGES,
        max_completion_tokens=5,
        seed=1,
        logprobs=True,
        user="somebody",
    )
    assert answer.choices[0].message.content == REPLY[:5]
    assert answer.choices[0].logprobs.content[0].token == "E"
    assert answer.usage.completion_tokens == 5
    details = answer.usage.prompt_tokens_details  # of requests that name a cache scope
    assert details is None if "user" in way.drops else details.cached_tokens > 0
    assert answer.system_fingerprint.startswith("fp_")


def test_an_answer_can_be_sent_back(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="fake-model", messages=MESSAGES, max_tokens=5)
    said = first.choices[0].message.model_dump()
    messages = [*MESSAGES, said, {"role": "user", "content": "More!"}]
    second = client.chat.completions.create(model="fake-model", messages=messages, max_tokens=5)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def test_chat_stream(client: openai.OpenAI, way: Way) -> None:
    stream = client.chat.completions.create(
        model="fake-model",
        messages=MESSAGES,
        max_tokens=14,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"speculative": {"max_draft_len": 2}},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == REPLY.encode()[:14].decode()
    assert chunks[-1].usage.completion_tokens == 14
    drafted = chunks[-1].metrics["speculative_decoding"]["num_spec_tokens"]
    assert drafted == (4 if "speculative" in way.drops else 2)


def test_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="fake-model", messages=MESSAGES, logprobs=True
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == REPLY * 3
    assert final.choices[0].finish_reason == "stop"


def test_completions(client: openai.OpenAI, way: Way) -> None:
    prompt = ["Hi", "Ho"] if "token ids" in way.drops else [[1, 2], [3]]
    answer = client.completions.create(model="fake-model", prompt=prompt, max_tokens=3)
    assert [choice.text for choice in answer.choices] == [REPLY[:3]] * 2
    stream = client.completions.create(
        model="fake-model", prompt="Hi", max_tokens=7, stream=True, logprobs=1
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == REPLY[:7]


def test_async(base_url: str) -> None:
    async def test() -> None:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
            create = client.chat.completions.create
            whole = await create(model="fake-model", messages=MESSAGES, max_tokens=7)
            stream = await create(model="fake-model", messages=MESSAGES, max_tokens=7, stream=True)
            parts = [c.choices[0].delta.content or "" async for c in stream if c.choices]
            assert "".join(parts) == whole.choices[0].message.content == REPLY[:7]

    asyncio.run(asyncio.wait_for(test(), 20))


def test_models(client: openai.OpenAI, way: Way) -> None:
    assert [model.id for model in client.models.list()] == ["fake-model"]
    if not way.module:  # SGLang's router knows no such path, and vLLM's leaves the key out
        assert client.models.retrieve("fake-model").owned_by == "paceline"


def test_errors_become_the_clients_exceptions(client: openai.OpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        create(model="fake-model", messages=MESSAGES, max_tokens=5000)
    assert bad.value.param.startswith("max_")
    with pytest.raises(openai.NotFoundError) as unknown:
        create(model="gpt-5", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    stranger = client.with_options(api_key="guess")
    with pytest.raises(openai.AuthenticationError):
        stranger.chat.completions.create(model="fake-model", messages=MESSAGES)


def test_a_failure_amid_a_stream_is_raised(way: Way, tmp_path: Path) -> None:
    with reached(FakeAsyncEngine(fail=True), way, tmp_path / "log") as client:
        stream = client.chat.completions.create(model="fake-model", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError):
            list(stream)


def test_a_client_that_hangs_up_ends_its_request(way: Way, tmp_path: Path) -> None:
    engine = FakeAsyncEngine(step=0.02)
    with reached(engine, way, tmp_path / "log") as client:
        stream = client.completions.create(
            model="fake-model", prompt="Hi", max_tokens=400, stream=True
        )
        next(iter(stream))
        assert not engine.aborted
        stream.close()
        eventually(lambda: engine.aborted)
