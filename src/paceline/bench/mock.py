"""Mocked acceptance on the real engine: what a drafter of given acceptance would buy here.

The target is real but for its weights, the drafting is paid for, the verification forward is that
of every round; only how many tokens stand is drawn, per request and round, from the acceptance that
was asked for (rule `synthetic`). What is said means nothing, so nothing of it is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from paceline.bench.steady import Steady, TimedStep, quieten
from paceline.bench.step_times import prompts
from paceline.bench.turns import in_turns, ratio_interval
from paceline.core import MAX_DRAFT_LEN, InvalidRequest, SpeculativeParams
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.engine.verify import make_verifier
from paceline.models.batch import BLOCK_SIZE
from paceline.models.config import ModelConfig
from paceline.roofline.acceptance import AcceptanceModel, of_length

WARM_UP = 3  # steps of each side that do not count
LENGTHS = (1, 3, 7, 15)
SIGMAS = 1.96  # of a 95% interval
AR, SPECULATIVE = "ar", "speculative"


@dataclass(frozen=True, slots=True)
class Asked:
    """An acceptance to mock: an AL, which every draft length reaches with a rate of its own, equal
    at each position; or an acceptance by position."""

    acceptance_length: float | None = None
    profile: AcceptanceModel | None = None

    def at(self, draft_length: int) -> AcceptanceModel | None:
        """None where drafts of that length cannot have it."""
        if self.acceptance_length is not None:
            if self.acceptance_length > draft_length + 1:
                return None
            return of_length(self.acceptance_length, draft_length)
        assert self.profile is not None
        return self.profile


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: every batch with every draft length and every acceptance that it can have.
    `context` is what requests have in the middle of a measurement, `steps` the rounds that count.

    Raises InvalidRequest naming the field.
    """

    asked: tuple[Asked, ...]
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
        if self.steps < 8:
            raise InvalidRequest("steps", self.steps, "a whole number of at least 8")
        longest = max(self.draft_lengths)
        if any(
            a.acceptance_length is not None and not a.acceptance_length >= 1 for a in self.asked
        ):
            lengths = [asked.acceptance_length for asked in self.asked]
            raise InvalidRequest("acceptance_length", lengths, "1 or more: the bonus is counted")
        for asked in self.asked:
            if asked.acceptance_length is not None and asked.at(longest) is None:
                expected = f"at most {longest + 1}: the longest drafts have {longest} tokens"
                raise InvalidRequest("acceptance_length", asked.acceptance_length, expected)
            depth = None if asked.profile is None else asked.profile.depth
            if depth is not None and longest > depth:
                expected = f"at most {depth}, the positions that have a rate"
                raise InvalidRequest("draft_lengths", longest, expected)
        least = 1 + max(self.before(cell.acceptance_length) for cell in self.cells())
        if self.context < least:
            expected = f"at least {least}: that is how far requests grow in {self.steps} steps"
            raise InvalidRequest("context", self.context, expected)

    def cells(self) -> Iterator[Cell]:
        for batch in self.batches:
            for length in self.draft_lengths:
                for asked in self.asked:
                    acceptance = asked.at(length)
                    if acceptance is not None:
                        yield Cell(batch, length, acceptance)

    def before(self, acceptance_length: float) -> int:
        """Tokens by which a request that commits so many a round begins below `context`."""
        return math.ceil((WARM_UP + self.steps / 2) * acceptance_length)

    @property
    def longest(self) -> int:
        """Most tokens that a request can come to have, were everything accepted."""
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


@dataclass(frozen=True, slots=True)
class Cell:
    batch: int
    draft_length: int
    acceptance: AcceptanceModel

    @property
    def acceptance_length(self) -> float:
        """AL that is asked for, incl. bonus."""
        return self.acceptance.expected_length(self.draft_length)

    @property
    def rates(self) -> tuple[float, ...]:
        """AcceptanceModel of each position, once it is reached."""
        return tuple(map(float, self.acceptance.conditional(self.draft_length)))


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell, measured. Seconds are medians of steps; `speedup` is AL as it was set times AR's
    step over the speculative one, the median of steps that were neighbours, with its 95% interval:
    the draws of a few rounds are no part of it. `al` is what those draws came to, incl. bonus, and
    `al_interval` where their mean lies with 95%."""

    cell: Cell
    context: float
    al: float
    al_interval: tuple[float, float]
    ar_seconds: float
    step_seconds: float
    draft_seconds: float
    speedup: float
    speedup_interval: tuple[float, float]


def engine_config(plan: Plan, shape: ModelConfig, drafter: str, **options: Any) -> EngineConfig:
    """An engine with room for two groups of the plan's largest batch: AR and speculative.

    `drafter` is a spec; `options` are EngineConfig's. Raises InvalidRequest for a context that the
    model does not have.
    """
    if plan.longest > shape.max_context:
        over = plan.longest - shape.max_context
        expected = f"at most {plan.context - over}: the model has {shape.max_context} tokens"
        raise InvalidRequest("context", plan.context, expected)
    widest = max(plan.batches)
    rows = widest * (1 + max(plan.draft_lengths))
    return EngineConfig(
        drafter=drafter,
        rule="synthetic",
        synthetic=(1.0,),  # each cell brings its own
        draft_policy="fixed",
        max_model_len=plan.longest,
        max_num_seqs=2 * widest,
        token_budget=max(512, rows, 2 * widest),
        **options,
    )


def measure(
    engine: Engine, plan: Plan, progress: Callable[[Measured], None] = lambda measured: None
) -> list[Measured]:
    """Measures every cell: AR and speculation in turns, step by step, at the same context."""
    quieten()
    steady, found = Steady(engine), []
    for index, cell in enumerate(plan.cells()):
        found.append(_measure(steady, plan, cell, plan.seed + index * max(plan.batches)))
        progress(found[-1])
    return found


def _measure(steady: Steady, plan: Plan, cell: Cell, seed: int) -> Measured:
    steady.engine.verifier = make_verifier("synthetic", cell.rates)
    wish = SpeculativeParams(max_draft_len=cell.draft_length, policy="fixed")
    sides = {AR: SpeculativeParams(off=True), SPECULATIVE: wish}
    groups = {}
    for side, length in ((AR, 1.0), (SPECULATIVE, cell.acceptance_length)):
        start = plan.context - plan.before(length)
        texts = prompts(steady.engine.vocab_size, cell.batch, start)
        # A scope for each side: AR computes no draft KV that the other's prompts would lack.
        groups[side] = steady.begin(texts, sides[side], salt=side.encode(), seed=seed)
    turns = {side: partial(steady.step, group) for side, group in groups.items()}
    steps = in_turns(turns, plan.steps, WARM_UP)
    for group in groups.values():
        steady.end(group)
    return summary(cell, steps[AR], steps[SPECULATIVE])


def summary(cell: Cell, plain: Sequence[TimedStep], drafted: Sequence[TimedStep]) -> Measured:
    """From the steps of both sides, which took turns."""
    committed = np.array([count for step in drafted for count in step.committed], dtype=float)
    mean = float(committed.mean())
    spread = SIGMAS * float(committed.std(ddof=1)) / math.sqrt(len(committed))
    pace = ratio_interval([step.seconds for step in plain], [step.seconds for step in drafted])
    speedup, low, high = (cell.acceptance_length * each for each in pace)
    return Measured(
        cell=cell,
        context=float(np.mean([step.context for step in drafted])),
        al=mean,
        al_interval=(mean - spread, mean + spread),
        ar_seconds=_median(step.seconds for step in plain),
        step_seconds=_median(step.seconds for step in drafted),
        draft_seconds=_median(step.drafting for step in drafted),
        speedup=speedup,
        speedup_interval=(low, high),
    )


def _median(values: Iterator[float]) -> float:
    return float(np.median(list(values)))
