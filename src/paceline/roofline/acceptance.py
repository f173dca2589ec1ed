"""Acceptance, the quality of drafts: its models, and the forms in which users state one.

Draft positions count from 1. The *survival* s_d is the unconditional probability that the first d
tokens of a draft are all accepted; the *conditional* acceptance a_d = s_d / s_{d-1} is that of
position d once it is reached. They are often confused, so every profile says which one it is.
The acceptance length AL(γ) = 1 + s_1 + … + s_γ counts the bonus token, as everywhere.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from paceline.core import InvalidRequest
from paceline.core.documents import Document
from paceline.core.errors import check_integer, check_number
from paceline.core.field_types import Expected, OneOfTypes

BISECTIONS = 60
ABOVE_0, BELOW_1 = math.nextafter(0, 1), math.nextafter(1, 0)
MOST = 1024  # drafted tokens; far beyond any drafter, so that a slip is no long wait


class AcceptanceModel(ABC):
    """The survival of a drafter's tokens. `depth` is the deepest position that the model covers,
    None where it covers all."""

    depth: int | None = None

    def survival(self, draft_length: int) -> np.ndarray:
        """s_1 … s_γ, [draft_length], non-increasing. Raises InvalidRequest past `depth`."""
        check_integer("draft_length", draft_length, 0, MOST, f"a whole number from 0 to {MOST}")
        if self.depth is not None and draft_length > self.depth:
            expected = f"at most {self.depth}, the positions that the acceptance is known for"
            raise InvalidRequest("draft_length", draft_length, expected)
        return self._survival(draft_length)

    @abstractmethod
    def _survival(self, draft_length: int) -> np.ndarray: ...

    def expected_length(self, draft_length: int) -> float:
        """AL(γ): tokens committed per round, bonus included."""
        return 1.0 + float(self.survival(draft_length).sum())

    def commit_probabilities(self, draft_length: int) -> np.ndarray:
        """P(a round commits 1 … γ + 1 tokens), [γ + 1]; sums to 1."""
        edges = np.concatenate(([1.0], self.survival(draft_length), [0.0]))
        return edges[:-1] - edges[1:]

    def conditional(self, draft_length: int) -> np.ndarray:
        """a_1 … a_γ, [γ]; 0 at positions that are never reached."""
        survival = self.survival(draft_length)
        before = np.concatenate(([1.0], survival))[:draft_length]
        rates = np.zeros_like(survival)
        np.divide(survival, before, out=rates, where=before > 0)
        return rates


@dataclass(frozen=True)
class Geometric(AcceptanceModel):
    """Every position is accepted with the same probability: s_d = α^d (Leviathan et al. 2023)."""

    alpha: float

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, 0, 1, "a probability from 0 to 1")

    def _survival(self, draft_length: int) -> np.ndarray:
        return np.power(float(self.alpha), np.arange(1, draft_length + 1))


@dataclass(frozen=True)
class Profile(AcceptanceModel):
    """Measured acceptance by position. Build it by `of_conditional`, `of_unconditional` or
    `of_rounds`.

    vLLM logs unconditional rates ("Per-position acceptance"); an evaluation of Paceline has both.
    """

    survivals: tuple[float, ...]

    @classmethod
    def of_unconditional(cls, rates: Sequence[float]) -> Profile:
        _check_rates("unconditional", rates)
        for position, (before, after) in enumerate(pairwise(rates), start=2):
            if after > before:
                expected = f"rates that never rise; position {position} does. Are they conditional?"
                raise InvalidRequest("unconditional", list(rates), expected)
        return cls(tuple(float(rate) for rate in rates))

    @classmethod
    def of_conditional(cls, rates: Sequence[float]) -> Profile:
        _check_rates("conditional", rates)
        return cls(tuple(float(survival) for survival in np.cumprod(rates)))

    @classmethod
    def of_rounds(cls, accepted: Sequence[int], drafted: Sequence[int] | int) -> Profile:
        """Estimate from a recorded run: of each round how many tokens were accepted, and how many
        were drafted (one number where every draft was equally long).

        Rounds whose draft ended early say nothing about later positions: a_d is the share of those
        that reached d and drafted it (the product-limit estimate).
        """
        rounds = len(accepted)
        if not rounds:
            raise InvalidRequest("trace", [], "at least one round")
        by_round = [drafted] * rounds if isinstance(drafted, int) else drafted
        if len(by_round) != rounds:
            expected = f"as many as there are rounds ({rounds})"
            raise InvalidRequest("drafted", len(by_round), expected)
        for stood, most in zip(accepted, by_round, strict=True):
            check_integer("drafted", most, 0, MOST, f"whole numbers from 0 to {MOST}")
            expected = "whole numbers from 0 to what the round drafted, bonus not counted"
            check_integer("accepted", stood, 0, most, expected)
        counts, offered, rates = np.asarray(accepted), np.asarray(by_round), []
        for position in range(1, max(by_round) + 1):
            reached = (counts >= position - 1) & (offered >= position)
            if not reached.any():
                break  # no round tells about this position, unless no token survives to it
            rates.append(float((counts[reached] >= position).mean()))
        if rates and rates[-1] == 0:
            rates += [0.0] * (max(by_round) - len(rates))
        return cls(tuple(np.cumprod(rates).tolist()))

    @property
    def depth(self) -> int:  # type: ignore[override]
        return len(self.survivals)

    def _survival(self, draft_length: int) -> np.ndarray:
        return np.array(self.survivals[:draft_length], dtype=float)


@dataclass(frozen=True)
class BetaGeometric(AcceptanceModel):
    """A mixture of easy and hard contexts: each round draws its α from Beta(a, b), so that
    s_d = Π_{i<d} (a + i) / (a + b + i) and conditional acceptance rises with depth, as measured
    ones do."""

    a: float
    b: float

    def __post_init__(self) -> None:
        for name, value in (("beta a", self.a), ("beta b", self.b)):
            check_number(name, value, ABOVE_0, 1e9, "a number above 0, up to 1e9")

    def _survival(self, draft_length: int) -> np.ndarray:
        i = np.arange(draft_length)
        return np.cumprod((self.a + i) / (self.a + self.b + i))

    @classmethod
    def fit(cls, first: float, acceptance_length: float, draft_length: int) -> BetaGeometric:
        """Fit to the acceptance of the first position and the AL (incl. bonus) at a draft length.

        The AL lies between that of no mixing, Geometric(first), and that of full mixing, where
        either all tokens of a draft stand or none. Raises InvalidRequest for an AL outside.
        """
        check_number("first", first, ABOVE_0, BELOW_1, "a probability between 0 and 1")
        check_integer("draft_length", draft_length, 2, MOST, f"a whole number from 2 to {MOST}")
        check_number("al", acceptance_length, 1, draft_length + 1, f"from 1 to {draft_length + 1}")
        low = Geometric(first).expected_length(draft_length)
        high = 1 + first * draft_length
        if not low < acceptance_length < high:
            expected = (
                f"above {low:.4g} (every context alike) and below {high:.4g} (all or nothing) "
                f"for a first position of {first:g} and a draft length of {draft_length}"
            )
            raise InvalidRequest("al", acceptance_length, expected)

        def with_spread(spread: float) -> BetaGeometric:
            total = min(max((1 - spread) / spread, 1e-9), 1e9)  # a + b
            return cls(first * total, (1 - first) * total)

        def length(spread: float) -> float:
            return with_spread(spread).expected_length(draft_length)

        return with_spread(_bisect(length, acceptance_length))


def of_length(acceptance_length: float, draft_length: int) -> Geometric:
    """Find the single α with this AL (incl. bonus) at `draft_length`, by bisection."""
    check_integer("draft_length", draft_length, 1, MOST, f"a whole number from 1 to {MOST}")
    expected = f"from 1 to {draft_length + 1}: a round commits up to the draft and the bonus token"
    check_number("al", acceptance_length, 1, draft_length + 1, expected)
    alpha = _bisect(lambda a: Geometric(a).expected_length(draft_length), acceptance_length)
    return Geometric(alpha)


def _bisect(rising: Callable[[float], float], wanted: float) -> float:
    """Find the place in (0, 1) where `rising` reaches `wanted`."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return (low + high) / 2


def _check_rates(field: str, rates: Sequence[float]) -> None:
    if isinstance(rates, str) or not isinstance(rates, Sequence) or not 1 <= len(rates) <= MOST:
        raise InvalidRequest(field, rates, f"a list of 1 to {MOST} probabilities, by position")
    for rate in rates:
        check_number(field, rate, 0, 1, "probabilities from 0 to 1")


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
            drafted = self.drafted
            if isinstance(drafted, list) and len(drafted) == 1:
                drafted = drafted[0]  # one number stands for all rounds, as a line of text has it
            return Profile.of_rounds(self.accepted, drafted)
        assert self.al is not None and self.draft_length is not None
        if self.first is not None:
            return BetaGeometric.fit(self.first, self.al, self.draft_length)
        return of_length(self.al, self.draft_length)


def acceptance_of(stated: object) -> AcceptanceModel:
    """Read an acceptance as JSON states it. Raises InvalidRequest."""
    return StatedAcceptance.read(stated, "acceptance").model()
