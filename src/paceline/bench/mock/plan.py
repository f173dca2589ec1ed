"""The plan of a mock: acceptances, draft lengths and batches to measure, at one context."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from paceline.core import MAX_DRAFT_LEN, InvalidRequest
from paceline.models.batch import BLOCK_SIZE
from paceline.roofline.acceptance import AcceptanceModel, of_length

WARM_UP = 3  # steps of each side that do not count
LENGTHS = (1, 3, 7, 15)
LEAST_STEPS = 8
Goal = float | AcceptanceModel
"""An acceptance to mock: an AL, which every draft length reaches with a rate of its own that is
equal at each position; or an acceptance by position."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement: a batch, a draft length and an acceptance."""

    batch: int
    draft_length: int
    acceptance: AcceptanceModel

    @property
    def acceptance_length(self) -> float:
        """The AL that is set, incl. bonus."""
        return self.acceptance.expected_length(self.draft_length)

    @property
    def rates(self) -> tuple[float, ...]:
        """The acceptance of each position, once it is reached."""
        return tuple(map(float, self.acceptance.conditional(self.draft_length)))


@dataclass(frozen=True, slots=True)
class MockPlan:
    """Every batch with every draft length and every acceptance that drafts of that length can have.

    `context` is the length of requests in the middle of a measurement, `steps` the rounds that
    count. Raises InvalidRequest naming the field.
    """

    goals: tuple[Goal, ...]
    draft_lengths: tuple[int, ...] = LENGTHS
    batches: tuple[int, ...] = (1,)
    context: int = 512
    steps: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for field, most in (("draft_lengths", MAX_DRAFT_LEN), ("batches", 4096)):
            values = getattr(self, field)
            if not values or not all(1 <= value <= most for value in values):
                raise InvalidRequest(field, values, f"whole numbers from 1 to {most}")
        if self.steps < LEAST_STEPS:
            raise InvalidRequest("steps", self.steps, f"a whole number of at least {LEAST_STEPS}")
        self._check_goals()
        least = 1 + max(self.before(cell.acceptance_length) for cell in self.cells())
        if self.context < least:
            expected = f"at least {least}: that is how far requests grow in {self.steps} steps"
            raise InvalidRequest("context", self.context, expected)

    def _check_goals(self) -> None:
        longest = max(self.draft_lengths)
        for goal in self.goals:
            if isinstance(goal, int | float):
                expected = f"at most {longest + 1}: the longest drafts have {longest} tokens"
                if goal < 1:
                    expected = "1 or more: the bonus is counted"
                if not 1 <= goal <= longest + 1:
                    raise InvalidRequest("acceptance_length", goal, expected)
            elif goal.depth is not None and longest > goal.depth:
                expected = f"at most {goal.depth}, the positions that have a rate"
                raise InvalidRequest("draft_lengths", longest, expected)

    def cells(self) -> Iterator[Cell]:
        for batch, length, goal in product(self.batches, self.draft_lengths, self.goals):
            if not isinstance(goal, int | float):
                yield Cell(batch, length, goal)
            elif goal <= length + 1:
                yield Cell(batch, length, of_length(goal, length))

    def before(self, acceptance_length: float) -> int:
        """Return how far below `context` a request begins that commits so many tokens a round."""
        return math.ceil((WARM_UP + self.steps / 2) * acceptance_length)

    @property
    def longest(self) -> int:
        """The most tokens that a request can come to have, were everything accepted."""
        ends = (
            self.context
            - self.before(cell.acceptance_length)
            + (WARM_UP + self.steps) * (cell.draft_length + 1)
            for cell in self.cells()
        )
        return max(*ends, self.context + self.steps) + max(self.draft_lengths) + 2

    @property
    def tokens(self) -> int:
        """KV slots of two groups of the largest batch."""
        blocks = -(-self.longest // BLOCK_SIZE) + 1
        return 2 * max(self.batches) * blocks * BLOCK_SIZE
