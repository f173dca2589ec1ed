"""Answers of OpenAI's Responses API: TypedDicts, from which OpenAPI's schema is made."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from paceline.server.responses import ChatLogprob, Metrics

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[object]
    logprobs: list[ChatLogprob]


class OutputMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]


class OutputCall(TypedDict):
    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ReasoningPart(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(TypedDict):
    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[object]
    content: list[ReasoningPart]
    encrypted_content: None


OutputPart = OutputMessage | OutputCall | OutputReasoning


class InputDetails(TypedDict):
    cached_tokens: int


class OutputDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Token counts. `cached_tokens` is 0 unless the request names a cache scope or the server runs
    with --share-answers always."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(TypedDict):
    code: str
    message: str


class Incomplete(TypedDict):
    reason: Literal["max_output_tokens"]


class ResponseObject(TypedDict):
    """A response. Fields of the request come back with the values that were used."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseFailure | None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputPart]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, object]
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[str, object]
    tool_choice: str | dict[str, object]
    tools: list[dict[str, object]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None
    metrics: NotRequired[Metrics]


class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItems(TypedDict):
    """Items of the input of a kept response."""

    object: Literal["list"]
    data: list[dict[str, object]]
    first_id: str | None
    last_id: str | None
    has_more: bool
