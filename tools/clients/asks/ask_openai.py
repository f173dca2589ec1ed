"""OpenAI's client."""

from typing import Literal

from openai import OpenAI
from pydantic import BaseModel, Field
from report import MODEL, V1, asks, main

client = OpenAI(base_url=V1, api_key="none", max_retries=0, timeout=300)
ASKED = [{"role": "user", "content": "What is the capital of France?"}]
SHORT = {"model": MODEL, "max_completion_tokens": 24}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}


class Capital(BaseModel):
    city: Literal["Paris", "Rome", "Berlin"]
    age: int = Field(ge=0, le=3000)


@asks("chat")
def _():
    assert client.chat.completions.create(messages=ASKED, **SHORT).choices[0].message.content


@asks("stream, with usage")
def _():
    usage = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(messages=ASKED, stream=True, stream_options=usage, **SHORT)
    )
    assert chunks[-1].usage.completion_tokens > 0 and len(chunks) > 3


@asks("n, seed, logprobs")
def _():
    answer = client.chat.completions.create(
        messages=ASKED, n=2, seed=1, logprobs=True, top_logprobs=2, **SHORT
    )
    assert len(answer.choices) == 2 and answer.choices[0].logprobs.content


@asks("tools")
def _():
    answer = client.chat.completions.create(
        messages=ASKED, tools=[TOOL], tool_choice="required", model=MODEL, max_tokens=100
    )
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"


@asks("parse(Pydantic)")
def _():
    answer = client.chat.completions.parse(
        messages=ASKED, response_format=Capital, model=MODEL, max_tokens=100
    )
    assert isinstance(answer.choices[0].message.parsed, Capital)


@asks("completions, echo with logprobs")
def _():
    answer = client.completions.create(
        model=MODEL, prompt="The sky is", max_tokens=1, echo=True, logprobs=1
    )
    assert answer.choices[0].text.startswith("The sky is")
    assert answer.choices[0].logprobs.token_logprobs[0] is None


@asks("responses: the README's first example")
def _():
    response = client.responses.create(
        model=MODEL,
        instructions="You are a coding assistant that talks like a pirate.",
        input="How do I check if a Python object is an instance of a class?",
        max_output_tokens=40,
    )
    assert response.output_text


@asks("responses: stream")
def _():
    with client.responses.stream(model=MODEL, input="Hi!", max_output_tokens=24) as stream:
        events = list(stream)
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")


@asks("responses: parse(Pydantic)")
def _():
    response = client.responses.parse(
        model=MODEL, input="The capital of France?", text_format=Capital, max_output_tokens=100
    )
    assert isinstance(response.output_parsed, Capital)


@asks("responses: tools, previous_response_id")
def _():
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}
    options = {"model": MODEL, "tools": [tool], "max_output_tokens": 100}
    first = client.responses.create(input="Weather?", tool_choice="required", **options)
    call = next(item for item in first.output if item.type == "function_call")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees"}
    again = client.responses.create(input=[output], previous_response_id=first.id, **options)
    assert again.usage.input_tokens > first.usage.input_tokens


@asks("embeddings", refused="Paceline serves no embeddings")
def _():
    client.embeddings.create(model=MODEL, input="Hi")


main()
