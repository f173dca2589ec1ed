"""Acceptance as users state it, as JSON or in one line, and the model that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import Field, model_validator

from paceline.core import InvalidRequest
from paceline.core.documents import Document
from paceline.core.field_types import Expected, OneOfTypes
from paceline.core.spec_line import parse_options
from paceline.roofline.acceptance.models import (
    MOST,
    AcceptanceModel,
    BetaGeometric,
    Geometric,
    Profile,
    Trace,
    of_length,
)

FORMS = (
    "alpha; or al (incl. bonus) and draft_length; or conditional or unconditional rates by "
    "position; or first, al and draft_length (a beta-geometric fit); or beta (its a and b); or "
    "accepted and drafted (of each round)"
)
LISTS = ("conditional", "unconditional", "beta", "accepted", "drafted")
Rates = Annotated[
    list[Annotated[float, Field(ge=0, le=1), Expected("a probability from 0 to 1")]],
    OneOfTypes((list,), f"a list of 1 to {MOST} probabilities, by position"),
]
Length = Annotated[int, Field(ge=1, le=MOST), Expected(f"a whole number from 1 to {MOST}")]
Count = Annotated[int, Field(ge=0, le=MOST), Expected(f"a whole number from 0 to {MOST}")]
ROUNDS = "a list of whole numbers, one for each round"
Pair = Annotated[tuple[float, float], Field(strict=False), Expected("two numbers, a and b")]


class StatedAcceptance(Document):
    """The quality of drafts, in one of these forms: alpha; al and draft_length; conditional;
    unconditional; first, al and draft_length; beta; accepted and drafted."""

    alpha: float | None = Field(default=None, description="every position is accepted alike")
    al: float | None = Field(default=None, description="tokens per round, incl. bonus")
    draft_length: Length | None = Field(default=None, description="the draft length of `al`")
    conditional: Rates | None = Field(
        default=None, description="by position: accepted ÷ drafts that came to it"
    )
    unconditional: Rates | None = Field(
        default=None, description="by position: accepted so far ÷ all drafts"
    )
    first: float | None = Field(default=None, description="acceptance of the first position")
    beta: Pair | None = Field(
        default=None, description="a and b of the law that each round's alpha is drawn from"
    )
    accepted: Annotated[list[Count], OneOfTypes((list,), ROUNDS)] | None = Field(
        default=None, description="tokens accepted, by round"
    )
    drafted: Annotated[Count | list[Count], OneOfTypes((int, list), ROUNDS)] | None = Field(
        default=None, description="tokens drafted, by round, or one number for all rounds"
    )

    @model_validator(mode="before")
    @classmethod
    def _check_form(cls, value: object) -> object:
        if isinstance(value, dict) and frozenset(value) in _BUILDERS and None not in value.values():
            return value
        raise ValueError(FORMS)

    def model(self) -> AcceptanceModel:
        """Build the model of acceptance. Raises InvalidRequest for numbers that cannot be."""
        return _BUILDERS[frozenset(self.model_fields_set)](self)


def _trace(stated: Any) -> Trace:
    drafted = stated.drafted
    if isinstance(drafted, list):  # one number stands for all rounds, as a line of text has it
        drafted = drafted[0] if len(drafted) == 1 else tuple(drafted)
    return Trace(tuple(stated.accepted), drafted)


_BUILDERS: dict[frozenset[str], Callable[[Any], AcceptanceModel]] = {
    frozenset({"alpha"}): lambda stated: Geometric(stated.alpha),
    frozenset({"al", "draft_length"}): lambda stated: of_length(stated.al, stated.draft_length),
    frozenset({"conditional"}): lambda stated: Profile.of_conditional(stated.conditional),
    frozenset({"unconditional"}): lambda stated: Profile.of_unconditional(stated.unconditional),
    frozenset({"beta"}): lambda stated: BetaGeometric(*stated.beta),
    frozenset({"first", "al", "draft_length"}): lambda stated: BetaGeometric.fit(
        stated.first, stated.al, stated.draft_length
    ),
    frozenset({"accepted", "drafted"}): _trace,
}


def acceptance_of(stated: object) -> AcceptanceModel:
    """Read an acceptance as JSON states it. Raises InvalidRequest."""
    if not isinstance(stated, dict) or not stated:
        raise InvalidRequest("acceptance", stated, FORMS)
    return StatedAcceptance.read(stated, "acceptance").model()


def numbers_of(field: str, text: str) -> dict[str, Any]:
    """Read `key=number,key=number,number` as JSON; what is no number stays text."""
    options = parse_options(field, text, LISTS)
    return {key: numbers_or_text(key, values) for key, values in options.items()}


def numbers_or_text(key: str, values: tuple[str, ...]) -> Any:
    """The value of one option: a list where the key may hold one."""
    numbers = [_number_or_text(value) for value in values]
    return numbers if key in LISTS else numbers[0]


def _number_or_text(text: str) -> float | int | str:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


@contextmanager
def placed(field: str) -> Iterator[None]:
    """Name the place of a part, in the errors of code that knows the part alone."""
    try:
        yield
    except InvalidRequest as error:
        if error.field.startswith(field):
            raise
        name = error.field.rpartition(".")[2]
        full = field if field.endswith(f".{name}") else f"{field}.{name}"
        raise InvalidRequest(full, error.value, error.expected) from None
