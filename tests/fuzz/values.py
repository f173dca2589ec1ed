"""Hostile JSON values. What no Python value can say (1e999, duplicate keys) is JSON text: `Raw`."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

LARGEST = 4 * 2**20  # bytes of a body: the server's default bound
USUAL = 2_000  # most sizes lie below it
LARGE_SHARE = 0.06  # of the sizes that lie above it

INTEGERS = tuple(
    sign * (2**power + step)
    for power in (7, 15, 31, 32, 53, 63, 64, 128)
    for step in (-2, -1, 0, 1)
    for sign in (1, -1)
)
NUMBERS = (
    *(str(number) for number in INTEGERS),
    "0", "-0", "-0.0", "1", "-1", "0.5", "1.0", "3.0", "1e2", "0.1", "16", "17", "128", "129",
    "5e-324", "1e-400", "1e-20", "1e19", "1e22", "1e308", "-1e308", "1e309", "1e999", "-1e999",
    "9223372036854775808.0", "-9223372036854775808.0", "1.7976931348623157e308", "2147483647.5",
    "NaN", "Infinity", "-Infinity", "9" * 400, "9" * 4301, "-" + "1" * 4301, "0." + "1" * 5000,
)  # fmt: skip
TEXTS = (
    "", " ", "\x00", "a\x00b", "\x1b[2J", "\r\n", "\n\n\n", "\t", "\ud800", "\udfff\ud800",
    "a\udc80",
    "\ufeff", "\ufffe", "\u202e", "\u0300" * 50, "👩‍👩‍👧‍👦", "ﷺ", "ß", "İ", "null", "true", "0",
    "-1", "NaN",
    "{}", "[]", '"', "\\", "\\u0000", "%s%n", "{{ 7 * 7 }}",
    "{% for i in range(10**9) %}{% endfor %}",
    "../../etc/passwd", "<tool_call>", "</tool_call>", "<|im_end|>", "<s>", "__proto__", "off",
    "auto",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Raw:
    """JSON text that is written as it is, right or wrong."""

    text: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """An object with its keys in order, some of them perhaps twice."""

    items: Sequence[tuple[str, Any]]


def written(value: Any) -> str:
    """JSON text of a value that may hold Raw and Pairs. Lone surrogates are written as escapes."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict | Pairs):
        items = value.items() if isinstance(value, dict) else value.items
        return "{" + ",".join(f"{json.dumps(str(k))}:{written(v)}" for k, v in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


def size(rng: random.Random, most: int = LARGEST) -> int:
    """A log-uniform size from 1 to `most`, small in most cases."""
    large = most > USUAL and rng.random() < LARGE_SHARE
    low, high = (USUAL, most) if large else (1, min(USUAL, most))
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def number(rng: random.Random) -> Raw:
    return Raw(rng.choice(NUMBERS))


def text(rng: random.Random) -> str:
    """A short hostile text, or a long dull one."""
    if rng.random() < 0.6:
        return rng.choice(TEXTS)
    unit = rng.choice(["a", "ab ", "word ", "\n", "1", "é", "\U0001f600", "}", "\x00"])
    return unit * (size(rng, LARGEST // 12) // len(unit) + 1)  # an escape takes up to 12 bytes


def scalar(rng: random.Random) -> Any:
    return rng.choice([number, number, text, _constant])(rng)


def _constant(rng: random.Random) -> Any:
    return rng.choice([None, True, False])


def long_list(rng: random.Random) -> Raw:
    """A list of equal items."""
    return _repeated(rng, size(rng))


def large_list(rng: random.Random) -> Raw:
    return _repeated(rng, round(math.exp(rng.uniform(math.log(20_000), math.log(LARGEST * 0.95)))))


def _repeated(rng: random.Random, total: int) -> Raw:
    item = written(rng.choice([0, 1, -1, 5, "", "a", None, [], {}, [1], {"role": "user"}, 0.5]))
    return Raw("[" + ",".join([item] * (total // (len(item) + 1) + 1)) + "]")


def mixed_list(rng: random.Random) -> list[Any]:
    return [scalar(rng) for _ in range(rng.randrange(6))]


def large_object(rng: random.Random) -> Raw:
    """An object of many keys: token ids, or names."""
    value, prefix = written(rng.choice([1, -100, None, "a", {}])), rng.choice(["", "", "k", "\x01"])
    count = size(rng, LARGEST // 16)
    key = json.dumps(prefix)[1:-1]
    return Raw("{" + ",".join(f'"{key}{n}":{value}' for n in range(count)) + "}")


def duplicate_keys(rng: random.Random) -> Pairs:
    key = text(rng)[:50]
    return Pairs([(key, scalar(rng)) for _ in range(rng.randrange(2, 5))])


def deep(rng: random.Random) -> Raw:
    """A value inside so many lists or objects; now and then they are not closed."""
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}"), ('[{"items":', "}]")])
    depth = size(rng, LARGEST // 16)
    return Raw(opening * depth + "1" + (closing * depth if rng.random() < 0.9 else ""))


def small_object(rng: random.Random) -> dict[str, Any]:
    return {text(rng)[:50]: scalar(rng) for _ in range(rng.randrange(4))}


KINDS: dict[Callable[[random.Random], Any], float] = {
    number: 30, text: 20, _constant: 10, mixed_list: 12, small_object: 8, long_list: 8,
    large_object: 4, duplicate_keys: 4, deep: 4,
}  # fmt: skip


def value(rng: random.Random) -> Any:
    """Any hostile value."""
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    return kind(rng)
