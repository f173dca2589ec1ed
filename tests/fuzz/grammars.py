"""Grammars that a client may ask for: right, wrong, or made to break or stall their compiler."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any

from tests.fuzz import values
from tests.fuzz.values import Raw, written

Maker = Callable[[random.Random], Any]

NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
FORMATS = ("date-time", "date", "time", "email", "ipv4", "ipv6", "uri", "uuid", "hostname", "nope")
PATTERNS = (
    "^[a-z]+$", "[0-9]{1,3}", "(a|b)*c", "^.*$", r"\d{4}-\d{2}", r"^\p{L}+$", "", "(", "[",
    "a{2,1}",
    "(?=a)b", r"(a)\1", "(a*)*", "((a+)+)+$", "(a|aa)+", "(x+x+)+y", "a{1000}", "(a{1000}){1000}",
    "(.{1,255}){255}", r"\p{L}{500}", "[^\x00]{100000}", "(?i)straße", "a{0,4294967296}", "^(|)*$",
    "(?s:.)*(?s:.)*(?s:.)*(?s:.)*x", "[\ud800]", "\\", "a**", "(?P<n>a)", r"\b", "[z-a]", "$^",
)  # fmt: skip
LARK_ENDS = (
    'start: "a"', 'start: start start | "a" | ""', "start: x\nx: y\ny: x", "start: nowhere",
    "start:",
    'start: ("a"*)*', 'start: "a"{1000000}', 'start: A\nA: /[a-z]+/ /[a-z]+/',
    'start: "a"{0,1000}',
    'start: s\ns: s s s | ', 'start: a* a* a* a* "x"\na: "y" | ""', "start: T\nT: T", 'x: "a"',
    'start: %json {"enum": [-9223372036854775808]}', 'start: %json {"type": "integer"}',
    "%import x",
    'start: A B\nA: "a"+\nB: "a"+', 'start[temperature=1e999]: "a"', 'start[max_tokens=0]: "a"',
    'start: <[999999999]>', "start: <|im_end|>", "start: /(/", "%llguidance {", 'start: "\\ud800"',
)  # fmt: skip


def _count(rng: random.Random, most: int) -> int:
    if rng.random() < 0.15:  # as large as what broke compilers
        return round(math.exp(rng.uniform(math.log(most / 20), math.log(most))))
    return values.size(rng, most) if rng.random() < 0.5 else rng.randrange(1, 20)


# -- JSON schemas ---------------------------------------------------------------------------------


def schema(rng: random.Random, depth: int = 0) -> Any:
    """A schema of any kind: a fifth of those at the top are bombs."""
    if depth == 0 and rng.random() < 0.2:
        return rng.choice(BOMBS)(rng)
    makers: list[Maker] = [_number, _text, _constant]
    if depth < 4:
        makers += [lambda r, make=make: make(r, depth) for make in (_object, _array, _mixed)]
    made = rng.choice(makers)(rng)
    if isinstance(made, dict) and rng.random() < 0.1:
        made[rng.choice(["title", "default", "$id", "not", "if", "x", "type", "$ref", *COUNTS])] = (
            values.scalar(rng)
        )
    return made


def _number(rng: random.Random) -> Any:
    bounds = {name: _limit(rng) for name in NUMERIC if rng.random() < 0.25}
    return {"type": rng.choice(["integer", "number"]), **bounds}


def _limit(rng: random.Random) -> Any:
    return values.number(rng) if rng.random() < 0.4 else rng.randrange(-5, 1000)


def _text(rng: random.Random) -> Any:
    made: dict[str, Any] = {"type": "string"}
    for name in ("minLength", "maxLength"):
        if rng.random() < 0.25:
            made[name] = _limit(rng)
    if rng.random() < 0.3:
        made["pattern"] = rng.choice(PATTERNS)
    if rng.random() < 0.2:
        made["format"] = rng.choice(FORMATS)
    return made


def _constant(rng: random.Random) -> Any:
    if rng.random() < 0.3:
        return {"const": values.scalar(rng)}
    if rng.random() < 0.1:
        return rng.choice([True, False, {}, {"type": "null"}, {"type": "boolean"}])
    return {"enum": [values.scalar(rng) for _ in range(rng.randrange(5))]}


def _object(rng: random.Random, depth: int) -> Any:
    names = [
        rng.choice(["a", "b", "size", "", "é", "\x00", "$ref"]) for _ in range(rng.randrange(4))
    ]
    made: dict[str, Any] = {
        "type": "object",
        "properties": {name: schema(rng, depth + 1) for name in names},
        "required": names[: rng.randrange(4)] + (["other"] if rng.random() < 0.1 else []),
    }
    if rng.random() < 0.6:
        made["additionalProperties"] = rng.choice([False, False, True, {"type": "string"}])
    if rng.random() < 0.1:
        made["patternProperties"] = {rng.choice(PATTERNS): schema(rng, depth + 1)}
    return made


def _array(rng: random.Random, depth: int) -> Any:
    made: dict[str, Any] = {"type": "array", "items": schema(rng, depth + 1)}
    for name in ("minItems", "maxItems"):
        if rng.random() < 0.3:
            made[name] = _limit(rng)
    if rng.random() < 0.1:
        made["prefixItems"] = [schema(rng, depth + 1) for _ in range(rng.randrange(3))]
    return made


def _mixed(rng: random.Random, depth: int) -> Any:
    key = rng.choice(["anyOf", "oneOf", "allOf"])
    return {key: [schema(rng, depth + 1) for _ in range(rng.randrange(4))]}


def ref_chain(rng: random.Random) -> Any:
    """Definitions that refer on: in a line, or at last to the first."""
    count, last = _count(rng, 8_000), rng.choice([{"type": "null"}, {"$ref": "#/$defs/d0"}, {}])
    within = rng.random() < 0.5
    links = []
    for n in range(count):
        ref: Any = {"$ref": f"#/$defs/d{n + 1}"}
        links.append({"type": "object", "properties": {"x": ref}} if within else ref)
    made = {f"d{n}": link for n, link in enumerate([*links, last])}
    return {"$ref": "#/$defs/d0", "$defs": made}


def deep_schema(rng: random.Random) -> Any:
    opening, closing = rng.choice([
        ('{"type":"array","items":', "}"), ('{"anyOf":[', "]}"), ('{"allOf":[', "]}"),
        ('{"type":"object","required":["a"],"properties":{"a":', "}}"), ('{"not":', "}"),
    ])  # fmt: skip
    depth = _count(rng, 20_000)
    return Raw(opening * depth + '{"type":"integer"}' + closing * depth)


def wide_schema(rng: random.Random) -> Any:
    count = _count(rng, 60_000)
    kind = rng.choice(["enum", "numbers", "properties", "required", "oneOf", "allOf", "defs"])
    names = [f"name{n}" for n in range(count)]
    if kind == "enum":
        return {"enum": names}
    if kind == "numbers":
        return {"enum": [n * 7919 - 2**62 for n in range(count)]}
    if kind == "required":
        return {"type": "object", "required": names}
    if kind == "properties":
        return {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    if kind == "defs":
        return {"$defs": {name: {"const": name} for name in names}, "$ref": f"#/$defs/{names[-1]}"}
    return {kind: [{"minimum": n, "type": "integer"} for n in range(count)]}


def limit_schema(rng: random.Random) -> Any:
    """One keyword with one number at a limit of its type."""
    name = rng.choice(["enum", "const", *NUMERIC, *COUNTS])
    limit = values.number(rng)
    kind = {"L": "string", "I": "array", "P": "object"}.get(name[3:4], "integer")
    if name == "enum":
        return {"enum": [limit]}
    if name == "const":
        return {"const": limit}
    both = {"minimum": limit, "maximum": limit} if rng.random() < 0.3 else {name: limit}
    return {"type": "integer" if "minimum" in both else kind, **both}


BOMBS: tuple[Maker, ...] = (ref_chain, deep_schema, wide_schema, limit_schema, limit_schema)

# -- regexes, Lark, choices -----------------------------------------------------------------------


def regex(rng: random.Random) -> str:
    if rng.random() < 0.7:
        return rng.choice(PATTERNS)
    count = _count(rng, 200_000)
    return rng.choice([
        lambda: "(" * count + "a" + ")" * count,
        lambda: "(" * count + "a" + ")*" * count,
        lambda: "|".join(f"word{n}" for n in range(count)),
        lambda: "a?" * count + "a" * count,
        lambda: f"(a{{1,{count}}}){{1,{count}}}",
        lambda: "[a-z]{3}" * count,
        lambda: f".{{{count}}}" + "(a|b)" * min(count, 1000),
    ])()  # fmt: skip


def lark(rng: random.Random) -> str:
    if rng.random() < 0.6:
        return rng.choice(LARK_ENDS)
    count = _count(rng, 60_000)
    return rng.choice([
        lambda: "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(count))
        + f'r{count}: "a"',
        lambda: "start: " + " | ".join(f'"w{n}"' for n in range(count)),
        lambda: "start: " + " | ".join(f"r{n}" for n in range(count))
        + "".join(f'\nr{n}: "a" | ""' for n in range(count)),
        lambda: f'start: ("a" | "b" | ""){{{count}}}',
        lambda: "start: " + "(" * count + '"a"' + ")*" * count,
        lambda: f"start: /{rng.choice(PATTERNS)}/",
        lambda: "start: A\nA: " + " | ".join(f"/a{{{n}}}b/" for n in range(min(count, 2000))),
        lambda: "start: %json " + written(schema(rng)),
    ])()  # fmt: skip


def choice(rng: random.Random) -> Any:
    count = _count(rng, 1_200)
    return rng.choice([
        lambda: ["red", "blue"], list, lambda: [""], lambda: ["a"] * count,
        lambda: [f"word {n}" for n in range(count)], lambda: [values.text(rng) for _ in range(3)],
        lambda: ["a" * n for n in range(1, min(count, 300))], lambda: values.mixed_list(rng),
    ])()  # fmt: skip


# -- the fields that they stand in ----------------------------------------------------------------


def tools(rng: random.Random) -> dict[str, Any]:
    """Tools with made-up parameters, and now and then a choice among them."""
    offered = []
    for n in range(rng.choice([1, 1, 2, 5])):
        function = {"name": f"tool{n}", "parameters": schema(rng)}
        offered.append({"type": "function", "function": function})
    made: dict[str, Any] = {"tools": offered}
    if rng.random() < 0.6:
        named = {"type": "function", "function": {"name": "tool0"}}
        made["tool_choice"] = rng.choice(["auto", "required", "none", named])
    return made


def structured(rng: random.Random, chat: bool) -> dict[str, Any]:
    """Fields of a request that bind its answer to a grammar."""
    if chat and rng.random() < 0.5:
        if rng.random() < 0.4:
            return tools(rng)
        if rng.random() < 0.1:
            return {"response_format": {"type": "json_object"}}
        wanted = {"name": "answer", "schema": schema(rng), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": wanted}}
    makers: dict[str, Maker] = {"json": schema, "regex": regex, "lark": lark, "choice": choice}
    name = rng.choice(list(makers))
    return {"structured_outputs": {name: makers[name](rng)}}


def call(rng: random.Random) -> dict[str, Any]:
    """A past tool call, as a message holds it."""
    arguments = rng.choice(["{}", '{"a": 1}', "", "[", "null", json.dumps({"a": "x" * 100})])
    function = {"name": rng.choice(["tool0", "", "nobody"]), "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": function}
