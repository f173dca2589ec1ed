"""Tools in the prompt of a model whose chat template has none: GENERIC's instructions and turns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby

from paceline.engine.tool_formats import GENERIC

INSTRUCTIONS = """\
You can call these functions. Each line is the JSON description of one:
{functions}

To call a function, answer with its name and its arguments as JSON, between tags:
{example}
{several}The arguments must match the parameters of the function. \
If no function helps, answer with plain text. \
The result of a call comes in the next message."""
SEVERAL = "For several calls, write several such blocks, one below the other. "
Message = Mapping[str, object]


def instructions(tools: Sequence[Mapping[str, object]], *, several: bool = True) -> str:
    """Return the text that tells a model about its tools, which are given as in OpenAI's API."""
    functions = "\n".join(
        json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools
    )
    example = GENERIC.write([("NAME", {})]).replace("{}", "ARGUMENTS")
    return INSTRUCTIONS.format(
        functions=functions, example=example, several=SEVERAL if several else ""
    )


def with_instructions(messages: Sequence[Message], text: str, role: str) -> list[Message]:
    """Return the messages with `text` in front of the first message of `role`, "user", or behind
    the one that begins as "system", which is made if there is none."""
    told = [dict(message) for message in messages]
    if role == "user":
        first = next((entry for entry in told if entry["role"] == "user"), None)
        if first is None:
            return [{"role": "user", "content": text}, *told]
        first["content"] = f"{text}\n\n{first['content']}"
        return list(told)
    if told and told[0]["role"] == "system":
        told[0]["content"] = f"{told[0]['content']}\n\n{text}"
        return list(told)
    return [{"role": "system", "content": text}, *told]


def plain_turns(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with their calls written in GENERIC's form, and the results of a turn's
    calls as one message of the user."""
    turns: list[Message] = []
    names: dict[object, str] = {}
    for are_results, group in groupby(messages, lambda message: message["role"] == "tool"):
        if are_results:
            results = [
                f"Result of {names.get(message.get('tool_call_id'), 'the call')}:\n"
                f"{message['content']}"
                for message in group
            ]
            turns.append({"role": "user", "content": "\n\n".join(results)})
        else:
            turns += [_with_written_calls(message, names) for message in group]
    return turns


def _with_written_calls(message: Message, names: dict[object, str]) -> Message:
    """Return a message with its calls as text, and note their names by their ids in `names`."""
    turn = dict(message)
    if isinstance(calls := turn.pop("tool_calls", None), Sequence):
        names |= {call.get("id"): call["function"]["name"] for call in calls}
        made = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        turn["content"] = f"{turn.get('content') or ''}\n{GENERIC.write(made)}".strip()
    return turn
