"""What tests of the Responses API share: a server, the official client, and what the model says."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from paceline.server.run import Server

from .conftest import Client, listening
from .fake import REPLY, FakeAsyncEngine
from .routers import KEY

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


@pytest.fixture(scope="module")
def engine() -> FakeAsyncEngine:
    return FakeAsyncEngine(max_model_len=4096)


@pytest.fixture(scope="module")
def server(engine: FakeAsyncEngine) -> Iterator[Server]:
    with listening(engine, api_keys=(KEY, "other")) as running:
        yield running


@pytest.fixture
def says(engine: FakeAsyncEngine) -> Iterator[Any]:
    """Let the model say something else."""

    def say(text: str) -> None:
        engine.reply = text

    yield say
    engine.reply = REPLY


@pytest.fixture
def sdk(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as made:
        yield made


def create(client: Client, **changes: Any) -> Any:
    return client.post("/v1/responses", json={**BODY, **changes})


def prompt_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.submitted[-1].prompt_ids)


def thinking_tokenizer(tokenizer: Any) -> Any:
    made = copy.deepcopy(tokenizer)
    content = "{{ m.content }}"
    thought = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    made.chat_template = made.chat_template.replace(content, thought + content)
    return made
