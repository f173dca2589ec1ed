"""The counts of a JSON text against those of what a parser reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.server.outline import JsonText

TEXTS = st.text(alphabet='a",:[]{}\\.eü\n', max_size=6)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner))


def count(value: Any) -> tuple[int, int, int]:
    """Values, parts and levels of a parsed JSON text."""
    if not isinstance(value, list | dict):
        return 1, isinstance(value, float), 0
    inner = [count(item) for item in (value.values() if isinstance(value, dict) else value)]
    members = len(value) if isinstance(value, dict) else 0
    return (
        1 + sum(values for values, _, _ in inner),
        1 + members + sum(parts for _, parts, _ in inner),
        1 + max((depth for _, _, depth in inner), default=0),
    )


@given(VALUES, st.booleans())
def test_nothing_is_missed(value: Any, ascii_only: bool) -> None:
    outline = JsonText(json.dumps(value, ensure_ascii=ascii_only).encode()).outline()
    values, parts, depth = count(value)
    assert outline.depth == depth
    assert outline.values >= values and outline.parts >= parts


@given(st.dictionaries(TEXTS, st.lists(st.integers(), min_size=1), min_size=1))
def test_the_largest_member_has_its_name(value: dict[str, list[int]]) -> None:
    text = JsonText(json.dumps(value, ensure_ascii=False).encode())
    member = text.largest()
    assert member is not None and member.items == max(map(len, value.values()))
    assert len(value[member.name]) == member.items
    assert list(text.names(len(value) + 5)) == list(value)
    assert list(text.names(1)) == list(value)[:1]


@pytest.mark.parametrize("text", [b"", b"{", b'"', b'{"a', b"]]]", b'{"a":[}', b"\xff", b'{"\\":'])
def test_malformed_texts_are_counted_all_the_same(text: bytes) -> None:
    reading = JsonText(text)
    reading.outline()
    reading.largest()
    list(reading.names(3))
