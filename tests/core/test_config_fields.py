"""Fields of a model's config: read strictly, refused with their name, value and what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields, first_with

VALUES = {
    "size": 64,
    "rate": 0.5,
    "whole": 32.0,
    "none": None,
    "tied": True,
    "names": ["a", "b"],
    "rope": {"factor": 2, "type": "yarn"},
    "zero": 0,
}


def test_fields_are_read_in_their_types_and_null_is_absent() -> None:
    fields = ConfigFields(VALUES)
    assert (fields.integer("size"), fields.integer("whole")) == (64, 32)
    assert type(fields.number("size")) is float and fields.number("zero", zero=True) == 0
    assert fields.integer("none", default=7) == 7 and fields.number("absent", default=1) == 1
    assert fields.integer("other_name", "size") == 64, "the first name that is there"
    assert fields.flag("tied") and not fields.flag("none")
    assert fields.words("names") == ("a", "b") and fields.words("absent") == ()
    assert fields.section("rope").integer("factor") == 2 and not fields.section("absent").values
    assert fields.is_null("none") and not fields.is_null("absent")
    rope = fields.section("rope")
    assert first_with("factor", fields, rope) is rope
    assert first_with("size", rope, fields) is first_with("absent", rope, fields) is fields


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda f: f.integer("absent"), "config.json: absent is None; expected a whole number"),
        (lambda f: f.integer("rate"), "rate is 0.5; expected a whole number, 1 or more"),
        (lambda f: f.integer("size", high=32), "size is 64; expected a whole number, at most 32"),
        (lambda f: f.integer("tied"), "tied is True; expected a whole number"),
        (lambda f: f.integer("old", "zero"), "old or zero is 0; expected a whole number, 1 or"),
        (lambda f: f.number("zero"), "zero is 0; expected a positive number"),
        (lambda f: f.number("names"), r"names is \['a', 'b'\]; expected a positive number"),
        (lambda f: f.flag("size"), "size is 64; expected true or false"),
        (lambda f: f.words("size"), "size is 64; expected a list of names"),
        (lambda f: f.section("size"), "size is 64; expected an object"),
        (lambda f: f.section("rope", "rope.").flag("type"), "config.json: rope.type is 'yarn'"),
    ],
)
def test_wrong_values_are_refused_by_name(
    read: Callable[[ConfigFields], Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        read(ConfigFields(VALUES))


def test_a_number_is_finite() -> None:
    with pytest.raises(ModelError, match="rate is inf"):
        ConfigFields({"rate": float("inf")}).number("rate")
    with pytest.raises(ModelError, match="size is inf; expected a whole number"):
        ConfigFields({"size": float("inf")}).integer("size")
