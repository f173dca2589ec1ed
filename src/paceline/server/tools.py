"""Tools: the fields that offer them, and which of them may be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from paceline.core import InvalidRequest
from paceline.core.documents import Document

MAX_TOOLS = 128


class Function(Document):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema; null: no arguments.")
    strict: bool | None = Field(None, description="The schema is always adhered to.")


class Tool(Document):
    type: Literal["function"]
    function: Function


class FunctionName(Document):
    name: str


class NamedTool(Document):
    type: Literal["function"]
    function: FunctionName


class CalledFunction(Document):
    name: str
    arguments: str = Field(description="A JSON object, as text.")


class ToolCall(Document):
    id: str
    type: Literal["function"]
    function: CalledFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def chosen_tools(tools: Sequence[Tool], choice: ToolChoice | None) -> list[tuple[int, Function]]:
    """The tools that may be called, with their places. Raises InvalidRequest for names that are
    used twice or not known."""
    functions = [tool.function for tool in tools]
    names = [function.name for function in functions]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"tools[{index}].function.name", name, "a name of its own")
    if isinstance(choice, NamedTool):
        wanted = choice.function.name
        if wanted not in names:
            expected = "one of: " + ", ".join(names)
            raise InvalidRequest("tool_choice.function.name", wanted, expected)
        return [(index, f) for index, f in enumerate(functions) if f.name == wanted]
    return list(enumerate(functions))
