"""Arguments between tags: which values stand there as plain text, and what a text means."""

from __future__ import annotations

import json
from collections.abc import Mapping

from paceline.core import InvalidRequest

# Keywords that a grammar of plain text honours; a text with others is written as JSON, in quotes.
PLAIN = {"type", "title", "description", "default", "examples", "enum", "const", "minLength"}
PLAIN |= {"maxLength"}
OF_OBJECT = {"type", "properties", "required", "additionalProperties", "title", "description"}
OF_OBJECT |= {"$defs", "definitions", "$schema", "strict"}
LONGEST = 4096  # characters that a plain text may be bound to; JSON's texts take larger bounds
DEFINITIONS = ("$defs", "definitions")


def properties(schema: Mapping[str, object], field: str) -> dict[str, dict[str, object]]:
    """Return the schema of each argument that can be written between tags, with the definitions
    that it may refer to. Raises InvalidRequest for a keyword that tags cannot honour."""
    if unknown := next((key for key in schema if key not in OF_OBJECT), None):
        expected = "parameters without it: this model writes arguments one by one, not as JSON"
        raise InvalidRequest(f"{field}.{unknown}", schema[unknown], expected)
    shared = {key: schema[key] for key in DEFINITIONS if key in schema}
    named = schema.get("properties") or {}
    if not isinstance(named, Mapping):
        raise InvalidRequest(f"{field}.properties", named, "an object")
    for name, part in named.items():
        if not name or set(name) & set("<>=\n"):
            expected = "a name without <, >, = and line breaks"
            raise InvalidRequest(f"{field}.properties", name, expected)
        if not isinstance(part, Mapping):
            raise InvalidRequest(f"{field}.properties.{name}", part, "an object")
    return {name: {**shared, **part} for name, part in named.items()}


def is_plain(schema: Mapping[str, object]) -> bool:
    """Return whether a value is a text that stands between its tags without quotes."""
    return (
        schema.get("type") == "string"
        and set(schema) - set(DEFINITIONS) <= PLAIN
        and all(isinstance(text, str) and text for text in plain_choices(schema) or ())
        and plain_choices(schema) != []
        and all(_is_length(schema.get(key, 0)) for key in ("minLength", "maxLength"))
    )


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LONGEST


def plain_choices(schema: Mapping[str, object]) -> list[object] | None:
    """Return the texts that a plain value may be, None where it is free."""
    if "const" in schema:
        return [schema["const"]]
    choices = schema.get("enum")
    return list(choices) if isinstance(choices, list) else None


def value_json(text: str, schema: Mapping[str, object] | None) -> str:
    """Return what a text between tags means, as JSON. An argument that has no schema, or is not
    well-formed, becomes a text."""
    if schema is None or not is_plain(schema):
        try:
            json.loads(text, parse_constant=_refuse)
            return text.strip()
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> object:
    raise ValueError(f"JSON has no {constant}")
