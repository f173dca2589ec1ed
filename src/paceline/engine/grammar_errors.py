"""Find the place of an error in a grammar: llguidance says what is wrong, seldom where."""

from __future__ import annotations

import json
import re

from paceline.core import Grammar, InvalidRequest
from paceline.engine.grammar_bounds import Path, SchemaNode, walk, written

PLACE = re.compile(r"\n\s*while processing \S*?#(\S*)\s*$")
# What llguidance advises is for whoever embeds it.
OVERLAP = (
    ". Enable 'coerce_one_of' option to approximate oneOf with anyOf",
    " where branches may overlap; anyOf is",
)
QUOTED = ("format", "pattern", "type", "$ref", "$dynamicRef")
LONGEST = 300  # characters of llguidance's message that are quoted


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
    path = found.path
    if names:
        expected = f"a schema without {path[-1]!r}, which is not supported"
    else:
        expected = f"another {path[-1]!r}: {reason[:LONGEST]}"
    return InvalidRequest(grammar.field + written(path), found.value, expected)


def too_heavy(grammar: Grammar, weight: str) -> InvalidRequest:
    """The error for a grammar that compiles or walks, but costs too much."""
    return InvalidRequest(grammar.field, grammar.source, f"a simpler grammar: {weight[:LONGEST]}")


def _place(message: str) -> tuple[Path, str]:
    """The JSON pointer that some messages end with, and the message without it."""
    at = PLACE.search(message)
    if at is None:
        return (), message.strip()
    steps = [step.replace("~1", "/").replace("~0", "~") for step in at[1].split("/")[1:]]
    return tuple(int(s) if s.isdecimal() else s for s in steps), message[: at.start()].strip()


def _find(schema: object, names: list[str], reason: str, below: Path) -> SchemaNode | None:
    """The first keyword that the message is about: by its name, else by its value."""
    keywords = [node for node in walk(schema) if _is_keyword(node)]
    if below:
        keywords = [node for node in keywords if node.path[: len(below)] == below]
    for node in keywords:
        if node.step in names:
            return node
    for node in keywords:
        if node.step in QUOTED and _quotes(reason, node.value):
            return node
    mentioned = [
        (found.start(), place)
        for place, node in enumerate(keywords)
        # `in` first: a regular expression for each of 100,000 keywords would take seconds.
        if str(node.step) in reason
        and (found := re.search(rf"\b{re.escape(str(node.step))}\b", reason))
    ]
    return keywords[min(mentioned)[1]] if mentioned else None


def _is_keyword(node: SchemaNode) -> bool:
    parent = node.parent
    return parent is not None and parent.kind == "schema" and isinstance(parent.value, dict)


def _quotes(reason: str, value: object) -> bool:
    """Return whether a message is about a keyword's value, or about the file that a reference
    names."""
    if not isinstance(value, str) or not value:
        return False
    file, _, pointer = value.partition("#")
    return (file or pointer) in reason
