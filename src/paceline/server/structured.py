"""The fields that ask for a form of the answer, and the grammars that they mean."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field

from paceline.core import Grammar, InvalidRequest
from paceline.core.documents import Document
from paceline.core.field_types import AtMost

JSON_OBJECT = {"type": "object"}


Schema = dict[str, Any] | bool


class TextFormat(Document):
    type: Literal["text"]


class JsonObjectFormat(Document):
    type: Literal["json_object"]


class NamedSchema(Document):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
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
        given = {
            name: value
            for name, value in (
                ("json", self.json_),
                ("regex", self.regex),
                ("lark", self.lark),
                ("choice", self.choice),
            )
            if value is not None
        }
        if len(given) != 1:
            expected = "exactly one of json, regex, lark and choice"
            raise InvalidRequest("structured_outputs", sorted(given), expected)
        name = next(iter(given))
        field = f"structured_outputs.{name}"
        if self.json_ is not None:
            return schema_grammar(self.json_, field)
        if self.choice is not None:
            if not all(self.choice):
                raise InvalidRequest(field, self.choice, "texts, none of them empty")
            return Grammar("regex", "|".join(map(re.escape, self.choice)), field)
        return Grammar(name, self.regex or self.lark or "", field)


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
