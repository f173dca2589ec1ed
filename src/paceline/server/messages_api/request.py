"""Bodies of POST /v1/messages and of /v1/messages/count_tokens."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from paceline.core import InvalidRequest
from paceline.core.documents import Document
from paceline.core.field_types import AtMost, Expected, Whole
from paceline.core.params import MaxTokens, MinP, Seed, Speculative, Temperature, TopK, TopP
from paceline.server.fields import JsonObject, NoList, Stops, Unsupported, joined_text
from paceline.server.protocol import MAX_MESSAGES, RequestBody, RequestObject
from paceline.server.structured import MAX_TOOLS, Name, Schema
from paceline.server.translation import Translation, shared_fields, translated


class CacheControl(RequestObject):
    """Accepted without effect: prefixes are cached by content."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(Document):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Unsupported = None


class ToolUseBlock(Document):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject
    cache_control: CacheControl | None = None
    caller: JsonObject | None = None


Texts = Annotated[list[TextBlock], AtMost(1024, "blocks of type text")]


class ToolResultBlock(Document):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Texts | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class ThinkingBlock(Document):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


Block = Annotated[
    TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock, Field(discriminator="type")
]
Blocks = Annotated[list[Block], AtMost(1024, "blocks")]


class Turn(Document):
    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class ClientTool(Document):
    """A tool that the client runs."""

    name: Name
    description: str | None = None
    input_schema: JsonObject
    type: Annotated[
        Literal["custom"] | None, Expected("custom: this server has no tools of its own")
    ] = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    input_examples: NoList = None


class ChosenTool(Document):
    """Which tools the answer may or must use."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingChoice(RequestObject):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Whole | None = None
    """Accepted without effect: max_tokens bounds the thinking and the answer together."""
    display: Literal["summarized", "omitted"] | None = None


class SchemaOutput(Document):
    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


class OutputConfig(RequestObject):
    format: SchemaOutput | None = None
    """The JSON schema that the answer matches."""
    effort: Literal["low", "medium", "high", "xhigh"] | None = None


class UserData(Document):
    user_id: str | None = None


class TokenCountRequest(RequestBody):
    """A conversation whose tokens are counted, in Anthropic's form."""

    messages: Annotated[list[Turn], Field(min_length=1), AtMost(MAX_MESSAGES, "messages")]
    system: str | Texts | None = None
    tools: Annotated[list[ClientTool], AtMost(MAX_TOOLS, "tools")] | None = None
    tool_choice: ChosenTool | None = None
    thinking: ThinkingChoice | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    mcp_servers: NoList = None
    context_management: Unsupported = None
    chat_template_kwargs: Annotated[JsonObject, AtMost(64, "variables")] | None = None

    def check(self) -> None:
        _ = self.translation

    @cached_property
    def translation(self) -> Translation:
        """The chat request. Raises ApiError."""
        turns = TurnMessages()
        if self.system:
            turns.add("system", self.system, "system")
        for index, turn in enumerate(self.messages):
            turns.add(turn.role, turn.content, f"messages[{index}].content")
        stated = {**self._for_chat(), "messages": turns.messages}
        stated["continue_final_message"] = turns.is_begun or None
        return translated(stated, {**PLACES, **self._tool_places(), **turns.places}, self.size)

    def _for_chat(self) -> dict[str, Any]:
        """Return the fields of the chat request, but for its messages."""
        output = self.output_config or OutputConfig()
        thinking = self.thinking
        return {
            "model": self.model,
            "chat_template_kwargs": self.chat_template_kwargs,
            "tools": [_tool(tool) for tool in self.tools] if self.tools else None,
            **self._choice(),
            "enable_thinking": _thinks(thinking) if thinking else None,
            "reasoning_effort": output.effort,
            "response_format": _schema_format(output.format) if output.format else None,
        }

    def _choice(self) -> dict[str, Any]:
        choice = self.tool_choice
        if choice is None:
            return {}
        if (choice.type == "tool") != (choice.name is not None):
            expected = "a name with type tool, and none with another type"
            raise InvalidRequest("tool_choice.name", choice.name, expected)
        named = {"type": "function", "function": {"name": choice.name}}
        kinds: dict[str, Any] = {"any": "required", "tool": named}
        says = self.tools or choice.type not in ("auto", "none")
        is_one = choice.disable_parallel_tool_use
        return {
            "tool_choice": kinds.get(choice.type, choice.type) if says else None,
            "parallel_tool_calls": None if is_one is None else not is_one,
        }

    def _tool_places(self) -> dict[str, str]:
        tools = range(len(self.tools or ()))
        return {f"tools[{i}].function.parameters": f"tools[{i}].input_schema" for i in tools}


class MessagesRequest(TokenCountRequest):
    """A conversation to answer, in Anthropic's form."""

    max_tokens: MaxTokens
    stop_sequences: Stops | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    metadata: UserData | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    """Accepted without effect: this server has one tier."""
    container: Unsupported = None
    min_p: MinP | None = None
    seed: Seed | None = None
    speculative: Literal["off"] | Speculative | None = None
    explain: bool | None = None
    cache_salt: str | None = None

    def _for_chat(self) -> dict[str, Any]:
        return {
            **super()._for_chat(),
            **shared_fields(self),
            "max_tokens": self.max_tokens,
            "stop": self.stop_sequences,
            "user": self.metadata.user_id if self.metadata else None,
        }


PLACES = {
    "stop": "stop_sequences",
    "enable_thinking": "thinking.type",
    "reasoning_effort": "output_config.effort",
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "tool_choice.function": "tool_choice",
    "user": "metadata.user_id",
}


class TurnMessages:
    """Makes the messages of a chat request from turns of blocks, and notes where each is from."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: dict[str, str] = {}

    def add(self, role: str, content: str | list[Block] | list[TextBlock], place: str) -> None:
        """Add a turn, whose content stands at `place` of the body."""
        if isinstance(content, str):
            self._add({"role": role, "content": content}, place)
            return
        texts: list[str] = []
        thoughts: list[str] = []
        spoken: dict[str, Any] = {"role": role}
        for index, block in enumerate(content):
            at = f"{place}[{index}]"
            match block:
                case TextBlock():
                    texts.append(block.text)
                case ToolResultBlock():
                    self._result(role, block, at)
                case ThinkingBlock():
                    thoughts.append(block.thinking)
                case ToolUseBlock():
                    spoken.setdefault("tool_calls", []).append(_call(role, block, at))
        if thoughts:
            spoken["reasoning_content"] = "\n".join(thoughts)
        if texts or len(spoken) > 1:
            self._add({**spoken, "content": "\n".join(texts) if texts else None}, place)

    @property
    def is_begun(self) -> bool:
        """Return whether the last turn begins the answer: it is a text of the assistant."""
        last = self.messages[-1] if self.messages else {}
        has_text = bool(last.get("content")) and "tool_calls" not in last
        return last.get("role") == "assistant" and has_text

    def _result(self, role: str, block: ToolResultBlock, place: str) -> None:
        if role != "user":
            raise InvalidRequest(f"{place}.type", block.type, "a tool_result in a turn of the user")
        result = {"role": "tool", "tool_call_id": block.tool_use_id}
        self._add({**result, "content": joined_text(block.content)}, place)

    def _add(self, message: dict[str, Any], place: str) -> None:
        at = f"messages[{len(self.messages)}]"
        self.messages.append(message)
        self.places[at] = self.places[f"{at}.content"] = place


def _call(role: str, block: ToolUseBlock, place: str) -> dict[str, Any]:
    if role != "assistant":
        raise InvalidRequest(f"{place}.type", block.type, "a tool_use in a turn of the assistant")
    function = {"name": block.name, "arguments": json.dumps(block.input)}
    return {"id": block.id, "type": "function", "function": function}


def _tool(tool: ClientTool) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    function = {"name": tool.name, "parameters": tool.input_schema, **described}
    return {"type": "function", "function": function}


def _thinks(thinking: ThinkingChoice) -> bool | None:
    """Return whether to think; adaptive leaves that to the model."""
    return None if thinking.type == "adaptive" else thinking.type == "enabled"


def _schema_format(output: SchemaOutput) -> dict[str, Any]:
    schema = {"name": "answer", "schema": output.schema_}
    return {"type": "json_schema", "json_schema": schema}
