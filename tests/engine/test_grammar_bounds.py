"""The door for grammars: what is refused, by which place, and what real schemas still may do."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from paceline.core import Grammar, InvalidRequest
from paceline.engine.grammar_bounds import (
    HIGHEST,
    LOWEST,
    MAX_ALTERNATIVES,
    MAX_SOURCE,
    check_grammar,
)

INT64_MIN = -(2**63)


def schema(value: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(value), "here")


def lark(source: str) -> Grammar:
    return Grammar("lark", source, "here")


def chain(length: int, last: Any) -> dict[str, Any]:
    """Definitions of which each refers to the next."""
    defs: dict[str, Any] = {
        f"d{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}}
        for i in range(length)
    }
    return {"$defs": {**defs, f"d{length}": last}, "$ref": "#/$defs/d0"}


def rules(length: int) -> str:
    lines = [f'r{i}: "a" r{i + 1}' for i in range(length)]
    return "\n".join(["start: r0", *lines, f'r{length}: "b"'])


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"items": value}
    return value


REFUSED: dict[str, tuple[Grammar, str, str]] = {
    "a sentinel": (schema({"enum": [1, INT64_MIN]}), "here.enum[1]", "double"),
    "a constant": (schema({"properties": {"a": {"const": INT64_MIN + 511}}}),
                   "here.properties.a.const", "double"),
    "within a constant": (schema({"const": {"enum": [INT64_MIN]}}), "here.const.enum[0]", "double"),
    "a range": (schema({"minimum": INT64_MIN, "maximum": INT64_MIN}), "here.", "above"),
    "an exclusive range": (schema({"items": {"exclusiveMinimum": LOWEST}}),
                           "here.items.exclusiveMinimum", "above"),
    "not a double": (schema({"const": 2**53 + 1}), "here.const", "double"),
    "huge": (schema({"const": 10**400}), "here.const", "double"),
    "a chain of references": (schema(chain(1000, {})), "here.$defs.d", "200 references"),
    "a chain of rules": (lark(rules(5000)), "here", "rule"),
    "alternatives": (lark("start: " + "|".join(f'"{i}"' for i in range(60_000))), "here", "5,000"),
    "many rules": (lark("\n".join(f'r{i}: "x"' for i in range(6000))), "here", "5,000 rules"),
    "a schema in Lark": (lark(f'start: "x" %json {{"enum": [{INT64_MIN}]}}'),
                         "here: rule 'start'.enum[0]", "double"),
    "levels": (schema(nested(150)), "here.items.items", "100 levels"),
    "bytes": (Grammar("regex", "a" * (MAX_SOURCE + 1), "here"), "here", "1,000,000 bytes"),
    "an enum": (schema({"enum": list(range(20_000))}), "here.enum", "10,000 items"),
    "properties": (schema({"properties": {f"p{i}": {} for i in range(3000)}}),
                   "here.properties", "2,000 entries"),
    "a long text": (schema({"enum": ["x" * 9000]}), "here.enum[0]", "8,192 characters"),
    "half a character": (Grammar("regex", "a\ud800", "here"), "here", "UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_past_a_bound_is_refused_by_its_place(name: str) -> None:
    grammar, field, expected = REFUSED[name]
    with pytest.raises(InvalidRequest) as refused:
        check_grammar(grammar)
    assert refused.value.field.startswith(field)
    assert expected in refused.value.expected


PASSING: dict[str, Grammar] = {
    "numbers": schema({"enum": [LOWEST + 512, HIGHEST, 2**53, 2**62, 10**20, 1e308, -0.5, True]}),
    "bounds of int64": schema({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}),
    "names are no keywords": schema({"properties": {"minimum": {"default": INT64_MIN},
                                                    "enum": {"type": "string"}}}),
    "data is not bound": schema({"examples": [INT64_MIN], "default": 2**53 + 1}),
    "recursive": schema(chain(3, {"$ref": "#/$defs/d0"})),
    "wide": schema({"$defs": {f"d{i}": {"const": i} for i in range(1500)},
                    "anyOf": [{"$ref": f"#/$defs/d{i}"} for i in range(1500)]}),
    "an enum of thousands": schema({"enum": [f"item-{i}" for i in range(10_000)]}),
    "levels": schema(nested(98)),
    "rules": lark(rules(480)),
    "bars in texts": lark('start: "||" /a|b/ %json {"description": "|"} // |\n'.replace(
        "||", "|" * (MAX_ALTERNATIVES + 1)).replace('"|"', json.dumps("|" * 6000))),
}  # fmt: skip


@pytest.mark.parametrize("name", PASSING)
def test_what_real_grammars_need_passes(name: str) -> None:
    check_grammar(PASSING[name])


@pytest.mark.parametrize(
    "source",
    [
        'start: "' + '\\"' * 499_000,
        "start: /" + "\\/" * 499_000,
        " " * 990_000,
        "%json [" * 140_000,
    ],
    ids=["quotes", "slashes", "spaces", "schemas"],
)
def test_the_door_takes_no_longer_than_its_bytes(source: str) -> None:
    """Each takes 0.1 s; a search that starts again at each quote would take minutes."""
    start = time.monotonic()
    check_grammar(lark(source))
    assert time.monotonic() - start < 10
