"""The official client, unchanged, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from paceline.server.run import Server

from .conftest import listening
from .fake import REPLY, FakeAsyncEngine

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with listening(FakeAsyncEngine(), api_keys=("secret",)) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as made:
        yield made


def test_chat(client: openai.OpenAI) -> None:
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
    assert answer.usage.prompt_tokens_details.cached_tokens > 0
    assert answer.system_fingerprint.startswith("fp_")


def test_an_answer_can_be_sent_back(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="fake-model", messages=MESSAGES, max_tokens=5)
    said = first.choices[0].message.model_dump()
    messages = [*MESSAGES, said, {"role": "user", "content": "More!"}]
    second = client.chat.completions.create(model="fake-model", messages=messages, max_tokens=5)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def test_chat_stream(client: openai.OpenAI) -> None:
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
    assert chunks[-1].metrics["speculative_decoding"]["num_spec_tokens"] == 2


def test_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="fake-model", messages=MESSAGES, logprobs=True
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == REPLY * 3
    assert final.choices[0].finish_reason == "stop"


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake-model", prompt=[[1, 2], [3]], max_tokens=3)
    assert [choice.text for choice in answer.choices] == [REPLY[:3]] * 2
    stream = client.completions.create(
        model="fake-model", prompt="Hi", max_tokens=7, stream=True, logprobs=1
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == REPLY[:7]


def test_async(server: Server) -> None:
    async def test() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret") as client:
            create = client.chat.completions.create
            whole = await create(model="fake-model", messages=MESSAGES, max_tokens=7)
            stream = await create(model="fake-model", messages=MESSAGES, max_tokens=7, stream=True)
            parts = [c.choices[0].delta.content or "" async for c in stream if c.choices]
            assert "".join(parts) == whole.choices[0].message.content == REPLY[:7]

    asyncio.run(asyncio.wait_for(test(), 20))


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake-model"]
    assert client.models.retrieve("fake-model").owned_by == "paceline"


def test_errors_become_the_clients_exceptions(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="fake-model", messages=MESSAGES, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-5", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    stranger = client.with_options(api_key="guess")
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_a_failure_amid_a_stream_is_raised() -> None:
    with (
        listening(FakeAsyncEngine(fail=True)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        stream = client.chat.completions.create(model="fake-model", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError):
            list(stream)
