"""Answers of Anthropic's Messages API: TypedDicts, from which OpenAPI's schema is made."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from paceline.server.responses import Metrics

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextOut(TypedDict):
    type: Literal["text"]
    text: str
    citations: None


class ToolUseOut(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]


class ThinkingOut(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


BlockOut = TextOut | ToolUseOut | ThinkingOut


class MessageUsage(TypedDict):
    """Token counts. `input_tokens` leaves out those read from the cache, which are told only where
    the request names a cache scope or the server runs with --share-answers always."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageObject(TypedDict):
    """An answer in Anthropic's form."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[BlockOut]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    metrics: NotRequired[Metrics]


class MessagesFailure(TypedDict):
    type: str
    message: str


class MessagesError(TypedDict):
    """An error in Anthropic's form."""

    type: Literal["error"]
    error: MessagesFailure


class TokenCount(TypedDict):
    input_tokens: int
