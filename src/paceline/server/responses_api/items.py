"""The items of a conversation in OpenAI's Responses API, and the messages that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter

from paceline.core.documents import Document
from paceline.core.field_types import AtMost
from paceline.server.fields import joined_text
from paceline.server.protocol import MAX_MESSAGES

Status = Literal["in_progress", "completed", "incomplete"]
Said = list[object]  # of an earlier answer, sent back: annotations, log-probabilities


class TextContent(Document):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Said | None = None
    logprobs: Said | None = None


class RefusalContent(Document):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


Content = Annotated[
    list[Annotated[TextContent | RefusalContent, Field(discriminator="type")]],
    AtMost(1024, "parts of text"),
]


class ConversationItem(Document):
    id: str | None = None
    status: Status | None = None


class MessageItem(ConversationItem):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Content
    phase: Literal["commentary", "final_answer"] | None = None

    @property
    def text(self) -> str:
        return joined_text(self.content)


class CallItem(ConversationItem):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class OutputItem(ConversationItem):
    type: Literal["function_call_output"]
    call_id: str
    output: str | Content


class ReasoningText(Document):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(ConversationItem):
    type: Literal["reasoning"]
    summary: Annotated[list[ReasoningText], AtMost(1024, "texts")] | None = None
    content: Annotated[list[ReasoningText], AtMost(1024, "texts")] | None = None
    encrypted_content: None = None


def _with_type(value: object) -> object:
    """A message may leave its type out."""
    if isinstance(value, dict) and "type" not in value and "role" in value:
        return {**value, "type": "message"}
    return value


AnyItem = Annotated[
    Annotated[MessageItem | CallItem | OutputItem | ReasoningItem, Field(discriminator="type")],
    BeforeValidator(_with_type),
]
Items = Annotated[list[AnyItem], AtMost(MAX_MESSAGES, "items")]
ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(Items)


class Conversation:
    """Makes the messages of a chat request from items, and notes where each comes from."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: dict[str, str] = {}
        self._reasoning: list[str] = []  # texts for the next message of the assistant

    def instruct(self, text: str) -> None:
        """Add instructions, which come first."""
        self._add({"role": "system", "content": text}, "instructions", field="instructions")

    def add(self, items: Sequence[AnyItem], field: str) -> None:
        """Add items that stand in `field` of the body, a list."""
        for index, item in enumerate(items):
            self._item(item, f"{field}[{index}]")

    def add_text(self, text: str, field: str) -> None:
        """Add a text that stands in `field` for a message of the user."""
        self._add({"role": "user", "content": text}, field, field=field)

    def _item(self, item: AnyItem, place: str) -> None:
        match item:
            case ReasoningItem():
                parts = item.content or item.summary or ()
                if text := joined_text(parts):
                    self._reasoning.append(text)
            case CallItem():
                self._call(item, place)
            case OutputItem():
                output = {"role": "tool", "tool_call_id": item.call_id}
                self._add({**output, "content": joined_text(item.output)}, place)
            case MessageItem():
                self._add({"role": item.role, "content": item.text}, place)

    def _call(self, item: CallItem, place: str) -> None:
        """Add a call to the assistant's message before it, or to one of its own."""
        if not self.messages or self.messages[-1]["role"] != "assistant" or self._reasoning:
            self._add({"role": "assistant", "content": None}, place)
        calls = self.messages[-1].setdefault("tool_calls", [])
        function = {"name": item.name, "arguments": item.arguments}
        calls.append({"id": item.call_id, "type": "function", "function": function})
        at = f"messages[{len(self.messages) - 1}].tool_calls"
        self.places.setdefault(at, place)
        self.places[f"{at}[{len(calls) - 1}]"] = place
        self.places[f"{at}[{len(calls) - 1}].function"] = place

    def _add(self, message: dict[str, Any], place: str, *, field: str | None = None) -> None:
        if self._reasoning and message["role"] == "assistant":
            message = {**message, "reasoning_content": "".join(self._reasoning)}
        self._reasoning = []  # a thought that another's message follows was cut short
        at = f"messages[{len(self.messages)}]"
        self.messages.append(message)
        self.places[at] = place
        self.places[f"{at}.tool_call_id"] = f"{place}.call_id"
        if field is not None:
            self.places[f"{at}.content"] = field
