"""Find the place of an error in a grammar: llguidance says what is wrong, seldom where."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from paceline.core import Grammar, InvalidRequest

# Keywords of JSON Schema whose values hold names, not keywords, on their first level.
NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
DATA = {"const", "enum", "default", "examples"}
PLACE = re.compile(r"\n\s*while processing \S*?#(\S*)\s*$")
# What llguidance advises is for whoever embeds it.
OVERLAP = (
    ". Enable 'coerce_one_of' option to approximate oneOf with anyOf",
    " where branches may overlap; anyOf is",
)
LONGEST = 300  # characters of llguidance's message that are quoted
Path = tuple[str | int, ...]


def refusal(grammar: Grammar, message: str) -> InvalidRequest:
    """The error for a grammar that does not compile. For a schema it names keyword and place."""
    if grammar.kind != "json_schema":
        expected = f"a {'regular expression' if grammar.kind == 'regex' else 'Lark grammar'}: "
        return InvalidRequest(grammar.field, grammar.source, expected + message[:LONGEST].strip())
    schema = json.loads(grammar.source)
    below, reason = _place(message)
    reason = reason.replace(*OVERLAP)
    unsupported = re.match(r"Unimplemented keys: (\[.*?\])", reason)
    names = json.loads(unsupported[1]) if unsupported else []
    found = _find(schema, names, reason, below)
    if found is None:
        return InvalidRequest(
            grammar.field + written(below), schema, f"another schema: {reason[:LONGEST]}"
        )
    path, value = found
    if names:
        expected = f"a schema without {path[-1]!r}, which is not supported"
    else:
        expected = f"another {path[-1]!r}: {reason[:LONGEST]}"
    return InvalidRequest(grammar.field + written(path), value, expected)


def too_heavy(grammar: Grammar, weight: str) -> InvalidRequest:
    """The error for a grammar that compiles or walks, but costs too much."""
    return InvalidRequest(grammar.field, grammar.source, f"a simpler grammar: {weight[:LONGEST]}")


def written(path: Path) -> str:
    """As a user would write the way into the value of a field: .items[0].type"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _place(message: str) -> tuple[Path, str]:
    """The JSON pointer that some messages end with, and the message without it."""
    at = PLACE.search(message)
    if at is None:
        return (), message.strip()
    steps = [step.replace("~1", "/").replace("~0", "~") for step in at[1].split("/")[1:]]
    return tuple(int(s) if s.isdecimal() else s for s in steps), message[: at.start()].strip()


def _find(schema: Any, names: list[str], reason: str, below: Path) -> tuple[Path, Any] | None:
    """The first keyword that the message is about: by its name, else by its value."""
    keywords = [item for item in _keywords(schema) if item[0][: len(below)] == below]
    for path, value in keywords:
        if path[-1] in names:
            return path, value
    for path, value in keywords:
        if path[-1] in ("format", "pattern", "type", "$ref", "$dynamicRef") and _quotes(
            reason, value
        ):
            return path, value
    mentioned = [
        (found.start(), place, (path, value))
        for place, (path, value) in enumerate(keywords)
        # `in` first: a regular expression for each of 100,000 keywords would take seconds.
        if str(path[-1]) in reason
        and (found := re.search(rf"\b{re.escape(str(path[-1]))}\b", reason))
    ]
    return min(mentioned)[2] if mentioned else None


def _quotes(reason: str, value: Any) -> bool:
    """Return whether a message is about a keyword's value; of a reference to elsewhere, about its
    file."""
    if not isinstance(value, str) or not value:
        return False
    file, _, pointer = value.partition("#")
    return (file or pointer) in reason


def _keywords(schema: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every keyword of a schema and of those within it, outermost first."""
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from _keywords(item, (*path, index))
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        yield (*path, keyword), value
    for keyword, value in schema.items():
        if keyword in NAMED and isinstance(value, dict):
            for name, inner in value.items():
                yield from _keywords(inner, (*path, keyword, name))
        elif keyword not in DATA:
            yield from _keywords(value, (*path, keyword))
