"""Bodies of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from paceline.core import InvalidRequest
from paceline.core.documents import Document
from paceline.core.field_types import AtMost, Expected, Whole
from paceline.core.params import (
    MaxTokens,
    MinP,
    Seed,
    Speculative,
    Temperature,
    TopK,
    TopLogprobs,
    TopP,
)
from paceline.server.fields import JsonObject, NoList, Unsupported
from paceline.server.protocol import RequestBody, RequestObject
from paceline.server.responses_api.items import AnyItem, Conversation, Items
from paceline.server.structured import MAX_TOOLS, JsonObjectFormat, Name, Schema, TextFormat
from paceline.server.translation import Translation, shared_fields, translated

LOGPROBS = "message.output_text.logprobs"
Function = Annotated[Literal["function"], Expected("function: this server has no tools of its own")]


class FunctionTool(Document):
    """A function that the answer may call."""

    type: Function
    name: Name
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    def for_chat(self) -> dict[str, object]:
        return {
            "type": "function",
            "function": self.model_dump(exclude={"type"}, exclude_unset=True),
        }


class ChosenFunction(Document):
    type: Function
    name: str


class SchemaFormat(Document):
    """The JSON schema of the answer."""

    type: Literal["json_schema"]
    name: Name
    schema_: Schema = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(Document):
    format: (
        Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None
    ) = None
    verbosity: Literal["low", "medium", "high"] | None = None

    def for_chat(self) -> dict[str, object] | None:
        if isinstance(self.format, SchemaFormat):
            schema = self.format.model_dump(exclude={"type"}, exclude_unset=True, by_alias=True)
            return {"type": "json_schema", "json_schema": schema}
        return None if self.format is None else self.format.model_dump()


class Reasoning(RequestObject):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto"] | None = None
    """Accepted without effect: the reasoning itself is returned."""
    generate_summary: Unsupported = None


class ResponseStreamOptions(RequestObject):
    include_obfuscation: bool | None = None
    """Pad every event to the same size, with a field `obfuscation`."""


class ResponsesRequest(RequestBody):
    """A turn of a conversation, which may go on from an earlier response."""

    input: str | Items
    """A text, or messages, calls and their outputs."""
    instructions: str | None = None
    previous_response_id: str | None = None
    """A response that is kept here; its instructions are not taken over."""
    store: bool | None = None
    """Keep the response, so that others may go on from it (default: true)."""
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_logprobs: TopLogprobs | None = None
    """Alternatives to each token, beside `include` of message.output_text.logprobs."""
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], AtMost(MAX_TOOLS, "tools")] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Whole | None = None
    """Accepted without effect: it bounds the calls of tools that run on the server."""
    reasoning: Reasoning | None = None
    include: Annotated[list[str], AtMost(16, "names")] | None = None
    metadata: Annotated[dict[str, str], AtMost(64, "entries")] | None = None
    truncation: Literal["disabled"] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    """Accepted without effect: prefixes are cached by content."""
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    background: Literal[False] | None = None
    conversation: Unsupported = None
    prompt: Unsupported = None
    context_management: NoList = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    speculative: Literal["off"] | Speculative | None = None
    explain: bool | None = None
    cache_salt: str | None = None
    chat_template_kwargs: Annotated[JsonObject, AtMost(64, "variables")] | None = None

    @property
    def keeps(self) -> bool:
        """Return whether the response is to be kept."""
        return self.store is not False

    def check(self) -> None:
        for index, name in enumerate(self.include or ()):
            if name not in (LOGPROBS, "reasoning.encrypted_content"):
                expected = f"{LOGPROBS} or reasoning.encrypted_content"
                raise InvalidRequest(f"include[{index}]", name, expected)
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options", "an object", "null, unless stream is true")
        if self.top_logprobs and not self.tells_logprobs:
            expected = f"null, unless include has {LOGPROBS}"
            raise InvalidRequest("top_logprobs", self.top_logprobs, expected)
        _ = self.translation

    @property
    def tells_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @cached_property
    def translation(self) -> Translation:
        """The chat request of a conversation that begins here. Raises ApiError."""
        return self.translate(())

    def translate(self, before: Sequence[AnyItem], size: int = 0) -> Translation:
        """Return the chat request that goes on after the items `before`, of `size` bytes.

        Raises ApiError.
        """
        conversation = Conversation()
        if self.instructions:
            conversation.instruct(self.instructions)
        conversation.add(before, "previous_response_id")
        if isinstance(self.input, str):
            conversation.add_text(self.input, "input")
        else:
            conversation.add(self.input, "input")
        stated = shared_fields(self)
        choice = self.tool_choice
        if isinstance(choice, ChosenFunction):
            stated["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        else:
            stated["tool_choice"] = choice
        stated |= {
            "messages": conversation.messages,
            "max_completion_tokens": self.max_output_tokens,
            "logprobs": self.tells_logprobs or None,
            "top_logprobs": self.top_logprobs if self.tells_logprobs else None,
            "response_format": self.text.for_chat() if self.text else None,
            "tools": [tool.for_chat() for tool in self.tools] if self.tools else None,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.reasoning.effort if self.reasoning else None,
            "user": self.user,
            "safety_identifier": self.safety_identifier,
        }
        return translated(stated, {**PLACES, **conversation.places}, self.size + size)


PLACES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "tool_choice.function": "tool_choice",
    "reasoning_effort": "reasoning.effort",
    "enable_thinking": "reasoning.effort",
}
