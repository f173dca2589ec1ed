"""The door for grammars: what is too large, too deep or out of range is refused by its place.

Nothing here recurses, and each check stops at the first breach. What these bounds let through is
still tried out in a child process (grammar_trial).
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple, TypeGuard

from paceline.core import Grammar, InvalidRequest

MAX_SOURCE = 1_000_000  # bytes of a grammar
MAX_DEPTH = 100  # levels of a schema's JSON; llguidance's parser takes 128
MAX_PROPERTIES = 2_000  # of one object
MAX_ITEMS = 10_000  # of one list: enum, anyOf, required, ...
MAX_TEXT = 8_192  # characters of one text in enum or const; forced tokens cost time for its length
MAX_REFERENCES = 200  # that lead from one to the next
MAX_RULES = 5_000  # of a Lark grammar
MAX_ALTERNATIVES = 5_000  # "|" in a Lark grammar
MAX_CHAIN = 500  # Lark rules that lead from one to the next

# llguidance keeps numbers as doubles and whole ones in a range as int64. It recurses without end
# over a range that is a single number at the lower end of int64.
LOWEST = -(2**63) + 512
HIGHEST = 2**63 - 1
EXACT = 2**53  # up to here a double holds every whole number
RANGE = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}

# What stands below a keyword, where that is no schema.
KINDS = {"const": "constant", "enum": "constant", "default": "data", "examples": "data"}
KINDS |= dict.fromkeys(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), "names"
)

Path = tuple[str | int, ...]


class SchemaNode(NamedTuple):
    """A value within a schema, at `step` of `parent`. `kind` is "schema", "names" (its keys are
    names of schemas), "constant" (within enum or const), or "data"."""

    value: object
    kind: str = "schema"
    depth: int = 1
    step: str | int = ""
    parent: SchemaNode | None = None

    @property
    def path(self) -> Path:
        steps: list[str | int] = []
        node = self
        while node.parent is not None:
            steps.append(node.step)
            node = node.parent
        return tuple(reversed(steps))

    def within(self) -> Iterator[SchemaNode]:
        if isinstance(self.value, list):
            for index, item in enumerate(self.value):
                yield SchemaNode(item, self.kind, self.depth + 1, index, self)
        elif isinstance(self.value, dict):
            kinds = KINDS if self.kind == "schema" else {}
            usual = "schema" if self.kind == "names" else self.kind
            for key, value in self.value.items():
                yield SchemaNode(value, kinds.get(key, usual), self.depth + 1, key, self)


def walk(schema: object) -> Iterator[SchemaNode]:
    """Every value of a schema, outermost first; what is within one comes after it was yielded."""
    nodes = deque([SchemaNode(schema)])
    while nodes:
        yield nodes[0]
        nodes.extend(nodes.popleft().within())


def written(path: Path) -> str:
    """Write a path inside a field's value as a user would: .items[0].type"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def check_grammar(grammar: Grammar) -> None:
    """Raises InvalidRequest for a grammar past these bounds, naming the place."""
    try:
        size = len(grammar.source.encode())
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can escape
        expected = "text that can be written as UTF-8"
        raise InvalidRequest(grammar.field, grammar.source, expected) from None
    if size > MAX_SOURCE:
        expected = f"a grammar of at most {MAX_SOURCE:,} bytes"
        raise InvalidRequest(grammar.field, f"{size:,} bytes", expected)
    if grammar.kind == "lark":
        check_lark(grammar.source, grammar.field)
    elif grammar.kind == "json_schema":
        try:
            schema = json.loads(grammar.source)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(grammar.field, grammar.source, f"a JSON schema: {error}") from None
        check_schema(schema, grammar.field)


def check_schema(schema: object, field: str) -> None:
    """Raises InvalidRequest for a schema past these bounds, naming the place below `field`."""
    references: dict[str, list[str]] = {}
    for node in walk(schema):
        if node.depth > MAX_DEPTH:
            raise _refused(field, node, f"at most {MAX_DEPTH} levels of nesting", "more levels")
        _check_value(field, node)
        if node.kind == "schema" and isinstance(node.value, dict):
            target = node.value.get("$ref")
            if isinstance(target, str):
                references.setdefault(_definition(node.path), []).append(target)
    last = past_chain(references, "#", MAX_REFERENCES)
    if last is not None:
        expected = f"at most {MAX_REFERENCES} references that lead from one to the next"
        place = "".join(f".{step}" for step in last.removeprefix("#/").split("/"))
        raise InvalidRequest(field + place, "a longer chain of $ref", expected)


def check_lark(source: str, field: str) -> None:
    """The same for a Lark grammar and for the schemas within it."""
    rules: dict[str, list[str]] = {}
    rule, alternatives, at = "", 0, 0
    while (token := LARK.search(source, at)) is not None:
        at = token.end()
        if token["json"]:
            try:
                schema, at = DECODER.raw_decode(source, at)
            except (ValueError, RecursionError):
                return  # llguidance says what is wrong with it
            check_schema(schema, f"{field}: rule {rule!r}")
        elif token["rule"]:
            rule = token["rule"]
            rules.setdefault(rule, [])
        elif token["name"]:
            rules.setdefault(rule, []).append(token["name"])
        elif token["bar"]:
            alternatives += 1
        if len(rules) > MAX_RULES:
            raise InvalidRequest(field, f"more, as {rule!r}", f"at most {MAX_RULES:,} rules")
        if alternatives > MAX_ALTERNATIVES:
            expected = f"at most {MAX_ALTERNATIVES:,} alternatives"
            raise InvalidRequest(field, f"more, in rule {rule!r}", expected)
    last = past_chain(rules, "start", MAX_CHAIN)
    if last is not None:
        expected = f"at most {MAX_CHAIN} rules that lead from one to the next"
        raise InvalidRequest(field, f"a longer chain, to rule {last!r}", expected)


def past_chain(edges: dict[str, list[str]], start: str, longest: int) -> str | None:
    """The first node that a walk in depth from `start` reaches behind `longest` others, or None.
    Each node is walked once, as llguidance compiles it once."""
    seen = {start}
    path = [iter(edges.get(start, ()))]
    while path:
        node = next(path[-1], None)
        if node is None:
            path.pop()
        elif node not in seen:
            seen.add(node)
            path.append(iter(edges.get(node, ())))
            if len(path) > longest:
                return node
    return None


DECODER = json.JSONDecoder()
# What a Lark grammar is made of, as far as it matters here. Texts, regular expressions and comments
# are passed over whole, so that nothing in them counts.
LARK = re.compile(
    r'"(?:\\.|[^"\\\n])*"?|/(?![/*])(?:\\.|[^/\\\n])+/?|//[^\n]*|\#[^\n]*'
    r"|(?P<json>%json\b\s*)|%[a-z]+"
    r"|^[ \t]*[?!]?(?P<rule>[A-Za-z_]\w*)(?:\.\d+)?(?:\[[^\]\n]*\])?[ \t]*:"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<bar>\|)",
    re.MULTILINE,
)


def _check_value(field: str, node: SchemaNode) -> None:
    value = node.value
    if isinstance(value, dict) and len(value) > MAX_PROPERTIES:
        raise _refused(field, node, f"at most {MAX_PROPERTIES:,} entries", f"{len(value):,}")
    if isinstance(value, list) and len(value) > MAX_ITEMS:
        raise _refused(field, node, f"at most {MAX_ITEMS:,} items", f"{len(value):,}")
    if node.kind == "constant":
        if isinstance(value, str) and len(value) > MAX_TEXT:
            characters = f"{len(value):,} characters"
            raise _refused(field, node, f"a text of at most {MAX_TEXT:,} characters", characters)
        if _is_number(value) and not _is_written(value):
            expected = f"a number above {LOWEST} that a double holds exactly"
            raise _refused(field, node, expected, value)
    elif node.kind == "schema" and node.step in RANGE and _is_number(value) and value <= LOWEST:
        raise _refused(field, node, f"a number above {LOWEST}, or none", value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_written(number: float) -> bool:
    """Return whether llguidance writes this constant as it is. A whole number goes through a
    double, and through int64 where that holds it."""
    if isinstance(number, float):
        return math.isfinite(number)
    if abs(number) <= EXACT or number == HIGHEST:
        return True
    if -(2**63) <= number <= HIGHEST:
        return number > LOWEST and float(number) == number
    return abs(number) < 10**308 and Decimal(repr(float(number))) == number


def _definition(steps: Path) -> str:
    """The definition that a place is in, as `$ref` names it: "#/$defs/NAME", or "#"."""
    if len(steps) >= 2 and steps[0] in ("$defs", "definitions"):
        return f"#/{steps[0]}/{steps[1]}"
    return "#"


def _refused(field: str, node: SchemaNode, expected: str, got: object) -> InvalidRequest:
    return InvalidRequest(field + written(node.path), got, expected)
