"""Tools: the fields that offer them and choose among them."""

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
    parameters: dict[str, Any] | None = Field(
        None, description="JSON schema of the arguments; null means none."
    )
    strict: bool | None = Field(None, description="Arguments always match the schema.")


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
    """Return the tools that may be called, with their places. Raises InvalidRequest for a name that
    is used twice or unknown."""
    functions = [tool.function for tool in tools]
    names = [function.name for function in functions]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"tools[{index}].function.name", name, "a name of its own")
    if isinstance(choice, NamedTool):
        name = choice.function.name
        if name not in names:
            expected = "one of: " + ", ".join(names)
            raise InvalidRequest("tool_choice.function.name", name, expected)
        return [(index, f) for index, f in enumerate(functions) if f.name == name]
    return list(enumerate(functions))
