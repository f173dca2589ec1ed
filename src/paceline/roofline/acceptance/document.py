"""Acceptance as users state it, as JSON or in one line, and the model that it stands for."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from paceline.core.documents import Document
from paceline.core.field_types import Expected, OneOfTypes
from paceline.roofline.acceptance.models import (
    MOST,
    AcceptanceModel,
    BetaGeometric,
    Geometric,
    Profile,
    Trace,
    of_length,
)

EXPECTED = (
    "alpha; or al (incl. bonus) and draft_length; or conditional or unconditional rates by "
    "position; or first, al and draft_length (a beta-geometric fit); or beta (its a and b); or "
    "accepted and drafted (of each round)"
)
FORMS = (
    {"alpha"}, {"al", "draft_length"}, {"conditional"}, {"unconditional"},
    {"first", "al", "draft_length"}, {"beta"}, {"accepted", "drafted"},
)  # fmt: skip
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

    model_config = ConfigDict(use_attribute_docstrings=True)

    alpha: float | None = None
    """every position is accepted alike"""
    al: float | None = None
    """tokens per round, incl. bonus"""
    draft_length: Length | None = None
    """the draft length of `al`"""
    conditional: Rates | None = None
    """by position: accepted ÷ drafts that came to it"""
    unconditional: Rates | None = None
    """by position: accepted so far ÷ all drafts"""
    first: float | None = None
    """acceptance of the first position"""
    beta: Pair | None = None
    """a and b of the law that each round's alpha is drawn from"""
    accepted: Annotated[list[Count], OneOfTypes((list,), ROUNDS)] | None = None
    """tokens accepted, by round"""
    drafted: Annotated[Count | list[Count], OneOfTypes((int, list), ROUNDS)] | None = None
    """tokens drafted, by round, or one number for all rounds"""

    @model_validator(mode="before")
    @classmethod
    def _check_form(cls, value: object) -> object:
        if isinstance(value, dict) and set(value) in FORMS and None not in value.values():
            return value
        raise ValueError(EXPECTED)

    def model(self) -> AcceptanceModel:
        """Build the model of acceptance. Raises InvalidRequest for numbers that cannot be."""
        if self.alpha is not None:
            return Geometric(self.alpha)
        if self.conditional is not None:
            return Profile.of_conditional(self.conditional)
        if self.unconditional is not None:
            return Profile.of_unconditional(self.unconditional)
        if self.beta is not None:
            return BetaGeometric(*self.beta)
        if self.accepted is not None and self.drafted is not None:
            drafted = self.drafted if isinstance(self.drafted, list) else [self.drafted]
            # one number stands for all rounds, as a line of text has it
            by_round = drafted[0] if len(drafted) == 1 else tuple(drafted)
            return Trace(tuple(self.accepted), by_round)
        assert self.al is not None and self.draft_length is not None
        if self.first is not None:
            return BetaGeometric.fit(self.first, self.al, self.draft_length)
        return of_length(self.al, self.draft_length)


def acceptance_of(stated: object) -> AcceptanceModel:
    """Read an acceptance as JSON states it. Raises InvalidRequest."""
    return StatedAcceptance.read(stated, "acceptance").model()
