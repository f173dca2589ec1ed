"""Mocked acceptance on the real engine: what a drafter of given acceptance would buy here.

The target is real but for its weights, drafting takes its time, and verification runs its forward.
Only the number of tokens that stand is drawn (rule `synthetic`): the text means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from paceline.bench.mock.plan import WARM_UP, Cell, MockPlan
from paceline.bench.steps.grid import prompts
from paceline.bench.steps.groups import Steady, TimedStep, quieten
from paceline.bench.turns import in_turns, ratio_interval
from paceline.core import SpeculativeParams
from paceline.engine.driver import Driver
from paceline.engine.engine import Engine
from paceline.engine.verify import make_verifier

SIGMAS = 1.96  # of a 95% interval
AR, SPECULATIVE = "ar", "speculative"


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell, measured. Seconds are medians of steps.

    speedup       the AL that was set x AR's step ÷ the speculative step, median over neighbours
    al            the mean of the draws, incl. bonus; intervals are of 95%
    """

    cell: Cell
    context: float
    al: float
    al_interval: tuple[float, float]
    ar_seconds: float
    step_seconds: float
    draft_seconds: float
    speedup: float
    speedup_interval: tuple[float, float]


def measure(engine: Engine, plan: MockPlan) -> list[Measured]:
    """Measure every cell: AR and speculation in turns, step by step, at the same context."""
    quieten()
    steady, results = Steady(engine), []
    for index, cell in enumerate(plan.cells()):
        with Driver(engine).rule(make_verifier("synthetic", cell.rates)):
            results.append(_measure(steady, plan, cell, plan.seed + index * max(plan.batches)))
    return results


def _measure(steady: Steady, plan: MockPlan, cell: Cell, seed: int) -> Measured:
    drafts = SpeculativeParams(max_draft_len=cell.draft_length, policy="fixed")
    groups = {}
    for side, speculation, length in (
        (AR, SpeculativeParams(off=True), 1.0),
        (SPECULATIVE, drafts, cell.acceptance_length),
    ):
        texts = prompts(steady.engine.vocab_size, cell.batch, plan.context - plan.before(length))
        # A scope for each side: AR computes no draft KV that the other's prompts would lack.
        groups[side] = steady.begin(texts, speculation, salt=side.encode(), seed=seed)
    turns = {side: partial(steady.step, group) for side, group in groups.items()}
    steps = in_turns(turns, plan.steps, WARM_UP)
    for group in groups.values():
        steady.end(group)
    return summary(cell, steps[AR], steps[SPECULATIVE])


def summary(cell: Cell, plain: Sequence[TimedStep], drafted: Sequence[TimedStep]) -> Measured:
    """Return the numbers of a cell from the steps of both sides, which took turns."""
    committed = np.array([count for step in drafted for count in step.committed], dtype=float)
    mean = float(committed.mean())
    spread = SIGMAS * float(committed.std(ddof=1)) / math.sqrt(len(committed))
    pace = ratio_interval([step.seconds for step in plain], [step.seconds for step in drafted])
    speedup, low, high = (cell.acceptance_length * value for value in pace)
    return Measured(
        cell=cell,
        context=float(np.mean([step.context for step in drafted])),
        al=mean,
        al_interval=(mean - spread, mean + spread),
        ar_seconds=float(np.median([step.seconds for step in plain])),
        step_seconds=float(np.median([step.seconds for step in drafted])),
        draft_seconds=float(np.median([step.drafting for step in drafted])),
        speedup=speedup,
        speedup_interval=(low, high),
    )
