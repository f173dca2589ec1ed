"""Describes the statuses of answers for OpenAPI's document: errors, and streams of events."""

from __future__ import annotations

from typing import Any

from paceline.server.errors import ErrorResponse

Statuses = dict[int | str, dict[str, Any]]  # as FastAPI takes them


def refusals(*statuses: int, model: type = ErrorResponse) -> Statuses:
    """Return the OpenAPI entries of error statuses, whose bodies are a `model`.

    They name its schema, which whoever writes the document adds: FastAPI would make it at the start
    for each status of each path.
    """
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    content = {"application/json": {"schema": schema}}
    return {status: {"description": MEANINGS[status], "content": content} for status in statuses}


MEANINGS = {
    400: "A field is wrong or cannot be honoured; `param` names it.",
    401: "The API key is missing or wrong.",
    403: "The server has no admin key, without which nobody may do this.",
    404: "The server has no such model, request or drafter.",
    409: "What is used at the moment, or its memory, does not allow this.",
    413: "The body is too long.",
    429: "The queue is full; the header Retry-After says when to come back.",
    500: "The engine failed.",
    503: "The server is shutting down, or its engine has stopped, or its store of drafters fails.",
}
EVENT = {
    "type": "string",
    "description": "A chunk as JSON (schema `AnswerChunk`), or `[DONE]`.",
    "contentMediaType": "application/json",
    "contentSchema": {"$ref": "#/components/schemas/AnswerChunk"},
}
EVENTS = {"type": "object", "required": ["data"], "properties": {"data": EVENT}}
EVENT_STREAM = {
    "description": "The answer; with `stream`, server-sent events that end with `[DONE]`.",
    "content": {"text/event-stream": {"itemSchema": EVENTS}},
}
GENERATION_STATUSES = (400, 401, 404, 413, 429, 500, 503)
GENERATION: Statuses = {200: EVENT_STREAM, **refusals(*GENERATION_STATUSES)}


def named_events(numbered: bool = False) -> Statuses:
    """Return the OpenAPI entry of a stream whose events have a `type`, and perhaps a number."""
    required = ["type", "sequence_number"] if numbered else ["type"]
    body = {
        "type": "object",
        "required": required,
        "properties": {"type": {"type": "string"}, "sequence_number": {"type": "integer"}},
    }
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": body}
    fields = {"event": {"type": "string"}, "data": data}
    events = {"type": "object", "required": ["event", "data"], "properties": fields}
    description = "The answer; with `stream`, server-sent events named by their `type`."
    content = {"text/event-stream": {"itemSchema": events}}
    return {200: {"description": description, "content": content}}
