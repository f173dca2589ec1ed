"""What a field says of itself, and refusals of objects of several kinds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationInfo, model_validator

from paceline.core import InvalidRequest
from paceline.core.document_help import about, default_of, values_of
from paceline.core.documents import Document
from paceline.core.field_types import Between, Expected, NonEmpty, fields_of


class Cat(Document):
    kind: Literal["cat"]
    lives: Annotated[int, Between(1, 9)] | None = about("how often it falls", None, "enough")
    cat: str = "a field that is called like its kind"


class Dog(Document):
    kind: Literal["dog"]
    name: NonEmpty = about("what it is called", "Rex")
    even: Annotated[int, Expected("an even {number}", lambda n: n % 2 == 0)] = 2


class House(Document):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = about("who lives here", list)
    size: Annotated[float, Between(0.5)] = 1.0
    open: bool = about("may be entered", False)
    shares: dict[str, float] = about("parts", lambda: {"a": 0.5, "b": 1.0})

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> House:
        if self.open and not self.pets:
            raise InvalidRequest("open", True, f"a pet in {info.context}")
        return self


def test_a_field_tells_its_values_and_its_default() -> None:
    cat, dog, house = fields_of(Cat), fields_of(Dog), fields_of(House)
    told = [(values_of(field), default_of(field)) for field in (*cat.values(), *house.values())]
    assert told == [
        ("cat", ""),
        ("1 to 9", "enough"),
        ("", "a field that is called like its kind"),
        ("", ""),
        ("at least 0.5", "1.0"),
        ("true, false", "false"),
        ("", "a=0.5,b=1"),
    ]
    assert dog["name"].description == "what it is called" and default_of(dog["name"]) == "Rex"
    assert House(pets=[]).shares is not House(pets=[]).shares


@pytest.mark.parametrize(
    ("pet", "message"),
    [
        ("cat", "pets[0]: got 'cat'; expected a mapping"),
        ({}, "pets[0].kind: missing; it is required"),
        ({"kind": "cow"}, "pets[0].kind: got 'cow'; expected one of cat, dog"),
        ({"kind": "cat", "lives": 10}, "pets[0].lives: got 10; expected a whole number from 1 "
         "to 9"),
        ({"kind": "cat", "cat": "x", "lives": 0}, "pets[0].lives: got 0; expected a whole number "
         "from 1 to 9"),
        ({"kind": "cat", "name": "x"}, "pets[0].name: unknown field; expected one of kind, lives, "
         "cat"),
        ({"kind": "dog", "name": " "}, "pets[0].name: got ' '; expected text, not empty"),
        ({"kind": "dog", "even": 3}, "pets[0].even: got 3; expected an even {number}"),
        ({"kind": "dog", "even": "x"}, "pets[0].even: got 'x'; expected an even {number}"),
    ],
    ids=str,
)  # fmt: skip
def test_an_object_of_several_kinds_is_refused_as_the_kind_it_is(pet: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        House.read({"pets": [pet]})
    assert str(caught.value) == message


def test_a_check_of_a_document_gets_the_context_and_its_place() -> None:
    with pytest.raises(InvalidRequest) as caught:
        House.read({"open": True}, "street[2]", context="town")
    assert str(caught.value) == "street[2].open: got true; expected a pet in town"
    assert House.read({"open": False}).pets == []


def test_a_refusal_is_put_into_a_place() -> None:
    error = InvalidRequest("name", 3, "a text")
    assert str(error.within("")) == "name: got 3; expected a text"
    assert str(error.within("a[0]")) == "a[0].name: got 3; expected a text"
    assert error.within("a").field == "a.name"
    assert InvalidRequest("", 3, "a text").within("a").field == "a"
    assert InvalidRequest("[1]", 3, "a text").within("a").field == "a[1]"
