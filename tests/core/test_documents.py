"""Documents refuse bad input in one wording: the field, its value, and what would be right."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field, PlainValidator, TypeAdapter

from paceline.core import InvalidRequest
from paceline.core.documents import Document, checked
from paceline.core.field_types import (
    ENDLESS,
    AtMost,
    Between,
    Flag,
    OneOf,
    Several,
    Whole,
    annotation_of,
    fields_of,
)
from paceline.core.refusals import MissingField, UnknownField


class Wheel(Document):
    size: Annotated[float, Between(0, 29, open=True)]
    spokes: Annotated[Whole, Between(1, ENDLESS)] = 32
    kind: Annotated[str, OneOf(("road", "track"))] = "road"


class Trike(Document):
    kind: Literal["trike"]
    wheels: Annotated[list[Wheel], AtMost(3, "wheels")]


class Tandem(Document):
    kind: Literal["tandem"]
    riders: Annotated[dict[str, int], AtMost(2, "riders")]


class Garage(Document):
    cycle: Annotated[Trike | Tandem, Field(discriminator="kind")]
    note: str | list[str] | None = None


def cycle(**changes: Any) -> dict[str, Any]:
    return {"cycle": {"kind": "trike", "wheels": [{"size": 20}], **changes}}


WRONG: list[tuple[Any, str, str]] = [
    (cycle(wheels=[{"size": 20}, {"size": "big"}]), "cycle.wheels[1].size", "a number"),
    (cycle(wheels=[{"size": 0}]), "cycle.wheels[0].size", "a number above 0, up to 29"),
    (cycle(wheels=[{"size": 30}]), "cycle.wheels[0].size", "a number above 0, up to 29"),
    (cycle(wheels=[{"size": float("nan")}]), "cycle.wheels[0].size", "a number above 0, up to 29"),
    (cycle(wheels=[{"size": True}]), "cycle.wheels[0].size", "a number"),
    (cycle(wheels=[{"size": 1, "spokes": 0}]), "cycle.wheels[0].spokes",
     "a whole number of at least 1"),
    (cycle(wheels=[{"size": 1, "kind": "bmx"}]), "cycle.wheels[0].kind", "one of road, track"),
    (cycle(wheels=[{"size": 20}] * 4), "cycle.wheels", "up to 3 wheels"),
    ({"cycle": {"kind": "tandem", "riders": {"a": 1, "b": 2, "c": 3}}}, "cycle.riders",
     "up to 2 riders"),
    ({**cycle(), "note": [1]}, "note[0]", "text"),
    ({**cycle(), "note": 5}, "note", "text or a list"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "field", "expected"), WRONG)
def test_a_refusal_names_field_and_what_would_be_right(
    value: Any, field: str, expected: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Garage.read(value)
    assert (caught.value.field, caught.value.expected) == (field, expected)
    assert str(caught.value).startswith(f"{field}: got ")


def test_whole_numbers_may_have_a_point_and_nothing_is_converted_else() -> None:
    assert Wheel.read({"size": 20, "spokes": 30.0}).spokes == 30
    with pytest.raises(InvalidRequest, match=r"spokes: got '30'; expected a whole number"):
        Wheel.read({"size": 20, "spokes": "30"})


def test_unknown_and_missing_fields() -> None:
    with pytest.raises(UnknownField, match=r"cycle\.wheel: unknown field; did you mean wheels\?"):
        Garage.read(cycle(wheel=[]))
    with pytest.raises(UnknownField, match=r"a\.b\.\w{64}\.\.\.: unknown field"):
        Wheel.read({"size": 20, "x" * 100: 1}, "a.b")
    with pytest.raises(MissingField, match=r"wheel\.size: missing"):
        Wheel.read({}, "wheel")
    with pytest.raises(UnknownField):  # one error, not one for each of them
        Wheel.read({str(name): 1 for name in range(10_000)})


class Frame(Document):
    material: str
    size: int
    maker: str = ""


def test_all_missing_fields_of_an_object_are_named_at_once() -> None:
    with pytest.raises(MissingField) as caught:
        Frame.read({"maker": "me"}, "frame")
    assert str(caught.value) == "frame.material, frame.size: missing; they are required"
    with pytest.raises(UnknownField, match="did you mean material"):  # one of them is misspelt
        Frame.read({"materiel": "steel"})


def test_a_place_in_a_larger_document_comes_before_the_field() -> None:
    with pytest.raises(InvalidRequest, match=r"^bikes\[2\]\.size: got 99; expected a number"):
        Wheel.read({"size": 99}, "bikes[2]")


@pytest.mark.parametrize(
    ("bounds", "whole", "words"),
    [
        (Between(0, 1), False, "a number from 0 to 1"),
        (Between(0.5), False, "a number of at least 0.5"),
        (Between(1, open=True), False, "a number above 1"),
        (Between(-(2**63), 2**64 - 1), False, f"a number from {-(2**63)} to {2**64 - 1}"),
        (Between(1, 64), True, "a whole number from 1 to 64"),
        (Between(0, ENDLESS), True, "a whole number of at least 0"),
        (Between(0, 1, words="a share"), False, "a share"),
    ],
)
def test_bounds_are_told_together(bounds: Between, whole: bool, words: str) -> None:
    assert bounds.expected(whole=whole) == words


def test_the_schema_has_the_bounds() -> None:
    schema = TypeAdapter(Wheel).json_schema()["properties"]
    assert schema["size"] == {
        "exclusiveMinimum": 0, "maximum": 29, "title": "Size", "type": "number"
    }  # fmt: skip
    assert schema["spokes"]["minimum"] == 1 and schema["spokes"]["type"] == "integer"
    assert schema["kind"]["enum"] == ["road", "track"]


# -- checked dataclasses --------------------------------------------------------------------------


def no_secret(value: Any) -> Any:
    if value == "secret":
        raise InvalidRequest("key", "<hidden>", "another key")
    return value


@checked
class Ride:
    WHERE: ClassVar = "ride"
    speed: Annotated[float, Between(0, 60)] = 20
    riders: Annotated[tuple[str, ...], Several, Flag("rider", "NAME")] = ()
    leader: str | None = None
    key: Annotated[str, PlainValidator(no_secret)] = ""

    def __post_init__(self) -> None:
        if self.leader is not None and self.leader not in self.riders:
            raise InvalidRequest("leader", self.leader, "one of the riders")


def test_a_checked_dataclass_is_a_frozen_dataclass() -> None:
    ride = Ride(riders=["a", "b"], leader="a")  # type: ignore[arg-type]
    assert ride.riders == ("a", "b") and ride == dataclasses.replace(ride)
    assert pickle.loads(pickle.dumps(ride)) == ride and not hasattr(ride, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        ride.speed = 30  # type: ignore[misc]
    with pytest.raises(TypeError):
        Ride(20)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"speed": 61}, "ride.speed: got 61; expected a number from 0 to 60"),
        ({"leader": "c"}, "ride.leader: got 'c'; expected one of the riders"),
        ({"key": "secret"}, "ride.key: got '<hidden>'; expected another key"),
        ({"rider": ("a",)}, "ride.rider: unknown field; did you mean riders?"),
    ],
)
def test_constructing_one_refuses_as_a_document_does(values: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Ride(**values)
    assert str(caught.value) == message
    with pytest.raises(InvalidRequest):
        dataclasses.replace(Ride(), **values)


def test_annotations_are_found_within_unions() -> None:
    @checked
    class Route:
        length: Annotated[int, Flag(metavar="KM")] | None = None

    assert annotation_of(fields_of(Route)["length"], Flag) == Flag(metavar="KM")
    assert annotation_of(fields_of(Route)["length"], OneOf) is None
    assert annotation_of(fields_of(Ride)["riders"], Flag) == Flag("rider", "NAME")
