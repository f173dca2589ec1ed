"""LangChain, by langchain-openai."""

from typing import Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from report import MODEL, V1, asks, main

OPTIONS = {"model": MODEL, "base_url": V1, "api_key": "none", "max_retries": 0, "timeout": 300}
model = ChatOpenAI(max_tokens=100, **OPTIONS)
ASKED = "What is the capital of France?"


class Capital(BaseModel):
    """The capital of a country."""

    city: Literal["Paris", "Rome", "Berlin"]


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Return the weather of a city."""
    return "12 degrees"


@asks("invoke")
def _():
    answer = model.invoke(ASKED)
    assert answer.content and answer.usage_metadata["output_tokens"] > 0


@asks("stream")
def _():
    assert "".join(chunk.content for chunk in model.stream(ASKED))


@asks("batch")
def _():
    assert len(model.batch([ASKED, "Hi!"])) == 2


@asks("structured output, default")
def _():
    assert isinstance(model.with_structured_output(Capital).invoke(ASKED), Capital)


@asks("structured output, function_calling")
def _():
    structured = model.with_structured_output(Capital, method="function_calling")
    assert isinstance(structured.invoke(ASKED), Capital)


@asks("bind_tools")
def _():
    answer = model.bind_tools([get_weather], tool_choice="required").invoke(ASKED)
    assert answer.tool_calls[0]["name"] == "get_weather"


@asks("the Responses API")
def _():
    responses = ChatOpenAI(max_tokens=40, use_responses_api=True, **OPTIONS)
    assert responses.invoke(ASKED).text


main()
