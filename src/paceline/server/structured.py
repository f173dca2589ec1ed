"""The fields that ask for a form of the answer, and the tools that it may call."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from paceline.core import Grammar, InvalidRequest
from paceline.core.documents import Document
from paceline.core.errors import OwnWords
from paceline.core.field_types import AtMost
from paceline.server.fields import JsonObject

MAX_TOOLS = 128
JSON_OBJECT = {"type": "object"}
Schema = JsonObject | bool
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class TextFormat(Document):
    type: Literal["text"]


class JsonObjectFormat(Document):
    type: Literal["json_object"]


class NamedSchema(Document):
    name: Name
    schema_: Schema = Field(alias="schema")
    description: str | None = None
    strict: bool | None = Field(None, description="The answer always matches the schema.")


class JsonSchemaFormat(Document):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class StructuredOutputs(Document):
    """Exactly one of the fields says what the output must match. `lark` is llguidance's Lark."""

    json_: Schema | None = Field(None, alias="json", description="A JSON schema.")
    regex: str | None = None
    lark: str | None = None
    choice: Annotated[list[str], Field(min_length=1), AtMost(1000, "texts")] | None = None

    def grammar(self) -> Grammar:
        """Return the grammar. Raises InvalidRequest unless exactly one field is given."""
        fields = type(self).model_fields
        given = [name.rstrip("_") for name in fields if getattr(self, name) is not None]
        if len(given) != 1:
            expected = OwnWords("exactly one of json, regex, lark and choice")
            raise InvalidRequest("structured_outputs", sorted(given), expected)
        field = f"structured_outputs.{given[0]}"
        if self.json_ is not None:
            return schema_grammar(self.json_, field)
        if self.choice is not None:
            if not all(self.choice):
                raise InvalidRequest(field, self.choice, OwnWords("texts, none of them empty"))
            return Grammar("regex", "|".join(map(re.escape, self.choice)), field)
        return Grammar(given[0], self.regex or self.lark or "", field)


def schema_grammar(schema: Schema, field: str) -> Grammar:
    return Grammar("json_schema", json.dumps(schema), field)


def format_grammar(response_format: ResponseFormat | None) -> Grammar | None:
    """Return the grammar of a `response_format`, None for text."""
    if isinstance(response_format, JsonSchemaFormat):
        field = "response_format.json_schema.schema"
        return schema_grammar(response_format.json_schema.schema_, field)
    if isinstance(response_format, JsonObjectFormat):
        return schema_grammar(JSON_OBJECT, "response_format")
    return None


class Function(Document):
    name: Name
    description: str | None = None
    parameters: JsonObject | None = Field(
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
            field = f"tools[{index}].function.name"
            raise InvalidRequest(field, name, OwnWords("a name of its own"))
    if not isinstance(choice, NamedTool):
        return list(enumerate(functions))
    name = choice.function.name
    if name not in names:
        expected = "one of: " + ", ".join(names)
        raise InvalidRequest("tool_choice.function.name", name, expected)
    return [(names.index(name), functions[names.index(name)])]
