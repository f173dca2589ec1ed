"""LiteLLM."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # do not fetch the list of prices

import litellm
from report import MODEL, URL, V1, asks, main

ASKED = [{"role": "user", "content": "What is the capital of France?"}]
OPTIONS = {
    "model": f"openai/{MODEL}", "api_base": V1, "api_key": "none", "max_tokens": 40,
    "timeout": 300, "max_retries": 0,
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}


@asks("chat")
def _():
    assert litellm.completion(messages=ASKED, **OPTIONS).choices[0].message.content


@asks("stream")
def _():
    chunks = litellm.completion(messages=ASKED, stream=True, **OPTIONS)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@asks("tools")
def _():
    answer = litellm.completion(
        messages=ASKED, tools=[TOOL], tool_choice="required", **{**OPTIONS, "max_tokens": 100}
    )
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"


@asks("text completion")
def _():
    options = {**OPTIONS, "model": f"text-completion-openai/{MODEL}"}
    assert litellm.text_completion(prompt="The sky is", **options).choices[0].text


@asks("responses")
def _():
    options = {**OPTIONS, "max_output_tokens": 24}
    del options["max_tokens"]
    assert litellm.responses(input="Hi!", **options).output


@asks("messages, as anthropic/")
def _():
    options = {**OPTIONS, "model": f"anthropic/{MODEL}", "api_base": URL}
    assert litellm.completion(messages=ASKED, **options).choices[0].message.content


@asks("reasoning_effort", refused="reasoning_effort: got 'low'")
def _():
    litellm.completion(
        messages=ASKED,
        reasoning_effort="low",
        allowed_openai_params=["reasoning_effort"],
        **OPTIONS,
    )


main()
