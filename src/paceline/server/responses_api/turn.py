"""Keep a response: the items of its input for a listing, and those that a follow-up's prompt is
made of."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.server.fields import JsonObject
from paceline.server.responses import write_json
from paceline.server.responses_api.items import ITEMS, AnyItem
from paceline.server.responses_api.objects import ResponseObject
from paceline.server.responses_api.request import ResponsesRequest

ENTRY_BYTES = 1024  # of a kept response beside its texts
ITEM_BYTES = 256  # of an item beside its text
UNREAD = ("annotations", "logprobs")  # parts of earlier answers that never reach a prompt


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item of the input, as JSON."""

    id: str
    json: bytes


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as JSON, under the key that sent the request, and the items of its input.

    `turn` has the items, as JSON, that the prompt of a follow-up is made of: those of the input,
    then those of the output.
    """

    owner: str
    previous: str | None
    response: bytes
    input: tuple[StoredItem, ...]
    turn: tuple[bytes, ...]
    size: int
    """Bytes of memory."""
    turn_size: int
    """Bytes of the turn."""


def stored(owner: str, body: ResponsesRequest, response: ResponseObject) -> StoredResponse:
    """Return what is kept of a response to `body`. Run it on a thread: both may be long."""
    listed = input_items(body)
    items = {id(item): StoredItem(item["id"], write_json(item)) for item in listed}
    asked = [items[id(item)].json for item in _read_items(listed)]
    output: list[JsonObject] = [{**item} for item in response["output"]]
    for item in output:
        _drop_unread(item)
    said = [write_json(item) for item in _read_items(filter(_is_whole, output))]
    written = write_json(response)
    texts = [written, *(item.json for item in items.values()), *said]
    return StoredResponse(
        owner,
        response["previous_response_id"],
        written,
        tuple(items.values()),
        (*asked, *said),
        ENTRY_BYTES + sum(ITEM_BYTES + len(text) for text in texts),
        sum(map(len, asked)) + sum(map(len, said)),
    )


def items_of(chain: Sequence[StoredResponse]) -> list[AnyItem]:
    """Return the items of a conversation: the inputs and outputs of its responses in order."""
    return ITEMS.validate_json(b"[%b]" % b",".join(item for entry in chain for item in entry.turn))


def input_items(body: ResponsesRequest) -> list[JsonObject]:
    """Return the items of a request's input as they are listed: each has an id."""
    if isinstance(body.input, str):
        content = [{"type": "input_text", "text": body.input}]
        stated: list[JsonObject] = [{"type": "message", "role": "user", "content": content}]
    else:
        stated = [item.model_dump(exclude_none=True) for item in body.input]
    items = []
    for item in stated:
        if isinstance(text := item.get("content"), str):
            kind = "output_text" if item["role"] == "assistant" else "input_text"
            item["content"] = [{"type": kind, "text": text}]
        _drop_unread(item)
        prefix = {"message": "msg", "reasoning": "rs"}.get(str(item["type"]), "fc")
        items.append({"id": f"{prefix}_{uuid.uuid4().hex}", "status": "completed", **item})
    return items


def _drop_unread(item: JsonObject) -> None:
    if item["type"] == "message":
        item["content"] = [
            {name: value for name, value in part.items() if name not in UNREAD}
            for part in item["content"]
        ]


def _is_whole(item: JsonObject) -> bool:
    """Return whether an item of an output can be shown to the model again. A call whose arguments
    were cut cannot: templates take them as an object."""
    if item["type"] != "function_call":
        return True
    try:
        return isinstance(json.loads(item["arguments"]), dict)
    except (ValueError, RecursionError):
        return False


def _read_items(items: Iterable[JsonObject]) -> list[JsonObject]:
    """Return items without reasoning that no message or call of the assistant follows: only with
    those does reasoning reach a prompt."""
    read: list[JsonObject] = []
    follows = False
    for item in reversed(list(items)):
        if item["type"] != "reasoning":
            follows = item["type"] == "function_call" or item.get("role") == "assistant"
        if follows or item["type"] != "reasoning":
            read.append(item)
    return read[::-1]
