"""Pydantic AI."""

import asyncio
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from report import MODEL, V1, asks, main

provider = OpenAIProvider(base_url=V1, api_key="none")
model = OpenAIChatModel(MODEL, provider=provider)
ASKED = "What is the capital of France?"
SETTINGS = {"max_tokens": 100}


class Capital(BaseModel):
    """The capital of a country."""

    city: Literal["Paris", "Rome", "Berlin"]


@asks("text")
def _():
    assert Agent(model, model_settings=SETTINGS).run_sync(ASKED).output


@asks("stream")
def _():
    async def stream():
        async with Agent(model, model_settings=SETTINGS).run_stream(ASKED) as result:
            return [text async for text in result.stream_text()]

    assert asyncio.run(stream())[-1]


@asks("structured output, default")
def _():
    agent = Agent(model, output_type=Capital, model_settings=SETTINGS)
    assert isinstance(agent.run_sync(ASKED).output, Capital)


@asks("structured output, NativeOutput")
def _():
    agent = Agent(model, output_type=NativeOutput(Capital), model_settings=SETTINGS)
    assert isinstance(agent.run_sync(ASKED).output, Capital)


@asks("the Responses API, structured by default")
def _():
    responses = OpenAIResponsesModel(MODEL, provider=provider)
    agent = Agent(responses, output_type=Capital, model_settings=SETTINGS)
    assert isinstance(agent.run_sync(ASKED).output, Capital)


main()
