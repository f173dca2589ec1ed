"""Anthropic's client."""

from anthropic import Anthropic
from report import MODEL, URL, asks, main

client = Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=300)
ASKED = [{"role": "user", "content": "Hello, Claude"}]
SHORT = {"model": MODEL, "max_tokens": 60, "messages": ASKED}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "input_schema": SCHEMA}


@asks("messages: the README's first example")
def _():
    assert client.messages.create(**SHORT).content[0].text


@asks("stream")
def _():
    with client.messages.stream(**SHORT) as stream:
        text = "".join(stream.text_stream)
        assert text and stream.get_final_message().content[0].text == text


@asks("tools, and their results")
def _():
    options = {**SHORT, "max_tokens": 100, "tools": [TOOL]}
    message = client.messages.create(**options, tool_choice={"type": "any"})
    use = next(block for block in message.content if block.type == "tool_use")
    assert set(use.input) == {"city"} and message.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "12 degrees"}
    turns = [*ASKED, {"role": "assistant", "content": message.content}]
    client.messages.create(
        **{**options, "messages": [*turns, {"role": "user", "content": [result]}]}
    )


@asks("a JSON schema")
def _():
    wish = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert '"city"' in client.messages.create(**SHORT, output_config=wish).content[0].text


@asks("count_tokens")
def _():
    assert client.messages.count_tokens(model=MODEL, messages=ASKED).input_tokens > 5


@asks("images", refused="messages[0].content[0].type: got 'image'")
def _():
    image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}
    turn = {"role": "user", "content": [image]}
    client.messages.create(**{**SHORT, "messages": [turn]})


main()
