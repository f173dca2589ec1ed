"""Times of the engine's steps over a grid of batch, rows per request and context.

A time is that of a whole round: scheduling, forward, verification, commit. A step of q rows checks
q - 1 arbitrary tokens that cost nothing to draft. None is accepted (rule `synthetic`), so a request
stays at its context. `paceline roofline fit` learns a calibration from these times.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.bench.steps.groups import Steady, StepGroup, TimedStep, quieten
from paceline.bench.steps.machine import NUMBERS
from paceline.core import MAX_DRAFT_LEN, InvalidRequest, SpeculativeParams
from paceline.drafters.mock import mock_line
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.models.batch import BLOCK_SIZE
from paceline.models.config import ModelConfig
from paceline.models.mocked import kv_bytes
from paceline.roofline.device import Hardware
from paceline.roofline.fit import MeasuredStep

FORMAT = "paceline-step-times/1"
BATCHES = (1, 2, 4, 8, 16, 32)
ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
CONTEXTS = (64, 512, 1024)
MOST_ROWS = 512
STEPS = 3  # of each point and round; the round's median counts
SETTLING = 2  # steps after the prompts are computed that do not count
SALT = b"step times"


@dataclass(frozen=True, slots=True)
class StepGrid:
    """The steps to time: every combination of at most MOST_ROWS rows. Raises InvalidRequest."""

    batches: tuple[int, ...] = BATCHES
    rows: tuple[int, ...] = ROWS
    contexts: tuple[int, ...] = CONTEXTS
    rounds: int = 5

    def __post_init__(self) -> None:
        for field, most in (("batches", 1024), ("rows", MAX_DRAFT_LEN + 1), ("contexts", 2**31)):
            values = getattr(self, field)
            if not values or not all(1 <= value <= most for value in values):
                raise InvalidRequest(field, values, f"whole numbers from 1 to {most}")
        if self.rounds < 1:
            raise InvalidRequest("rounds", self.rounds, "a whole number of at least 1")
        if not self.points:
            expected = f"some with batch x rows of at most {MOST_ROWS}"
            raise InvalidRequest("batches", self.batches, expected)

    @property
    def points(self) -> list[tuple[int, int, int]]:
        """(batch, rows, context)"""
        every = itertools.product(self.batches, self.rows, self.contexts)
        return [point for point in every if point[0] * point[1] <= MOST_ROWS]

    @property
    def growth(self) -> int:
        """The most tokens by which a request grows while it is timed."""
        return (SETTLING + STEPS) * len(self.rows) + max(self.rows)


def engine_config(grid: StepGrid, shape: ModelConfig, **options: Any) -> EngineConfig:
    """Return the config of an engine with room for the whole grid, for a model of that shape.

    `options` are EngineConfig's. Raises InvalidRequest for contexts that the model does not have.
    """
    longest = max(grid.contexts) + grid.growth
    if longest > shape.max_context:
        expected = f"at most {shape.max_context - grid.growth}: the model's context is bounded"
        raise InvalidRequest("contexts", max(grid.contexts), expected)
    widest = max(grid.batches)
    tokens = widest * (-(-longest // BLOCK_SIZE) + 1) * BLOCK_SIZE
    # What an earlier, shorter group has cached may not make room for a longer one's blocks.
    memory = 2 * kv_bytes(shape, options.get("dtype", "bfloat16"), tokens)
    return EngineConfig(
        drafter=mock_line(MAX_DRAFT_LEN),
        rule="synthetic",
        synthetic=(0.0,),
        draft_policy="fixed",
        max_model_len=longest,
        max_num_seqs=widest,
        token_budget=max(MOST_ROWS, widest),
        kv_memory=memory,
        **options,
    )


def measure_steps(
    engine: Engine, grid: StepGrid, progress: Callable[[int, int], None] = lambda done, of: None
) -> list[MeasuredStep]:
    """Return the median of each point over `grid.rounds` rounds, at the mean of its contexts.

    `progress(done, of)` is called after each batch and context of a round.
    """
    quieten()
    steady, rng = Steady(engine), random.Random(0)
    timed: dict[tuple[int, int, int], list[MeasuredStep]] = {point: [] for point in grid.points}
    pairs = sorted({(batch, context) for batch, _, context in grid.points})
    for turn in range(grid.rounds):
        rng.shuffle(pairs)
        for index, (batch, context) in enumerate(pairs):
            texts = prompts(engine.vocab_size, batch, context)
            group = steady.begin(texts, SpeculativeParams(policy="fixed"), salt=SALT, seed=0)
            lengths = [r for b, r, c in grid.points if (b, c) == (batch, context)]
            for rows in rng.sample(lengths, len(lengths)):
                timed[batch, rows, context].append(_time(steady, group, rows, turn == 0))
            steady.end(group)
            progress(turn * len(pairs) + index + 1, grid.rounds * len(pairs))
    return [_middle(*point[:2], times) for point, times in timed.items()]


def _time(steady: Steady, group: StepGroup, rows: int, first: bool) -> MeasuredStep:
    """Return the median of a few steps. A shape's first step pays for buffers and is left out."""
    group.draft(rows - 1)
    for _ in range(SETTLING if first else 1):
        steady.step(group)
    steps = [steady.step(group) for _ in range(STEPS)]
    return _middle(len(group.requests), rows, steps)


def _middle(batch: int, rows: int, times: Sequence[TimedStep | MeasuredStep]) -> MeasuredStep:
    context = round(statistics.mean(step.context for step in times))
    return MeasuredStep(batch, rows, context, statistics.median(step.seconds for step in times))


def prompts(vocab_size: int, count: int, length: int) -> list[list[int]]:
    """Return arbitrary prompts, no two alike; a longer one begins as the shorter one does."""
    streams = (random.Random(index) for index in range(count))
    return [[rng.randrange(vocab_size) for _ in range(length)] for rng in streams]


def as_json(engine: Engine, machine: Hardware, points: Sequence[MeasuredStep]) -> dict[str, object]:
    """Return the points for `paceline roofline fit`. No text comes with them: it means nothing."""
    return {
        "format": FORMAT,
        **measured_on(engine, machine),
        "points": [point_json(point) for point in points],
    }


def measured_on(engine: Engine, machine: Hardware) -> dict[str, object]:
    """Return the model, the form in which it ran, and the machine."""
    return {
        "lossless": engine.verifier.lossless,
        "model": engine.model_name,
        "precision": NUMBERS[engine.config.dtype],
        "network": engine.backend,
        "hardware": machine.model_dump(),
    }


def point_json(point: MeasuredStep) -> dict[str, float]:
    """Return a point as `roofline.fit.read_points` reads it."""
    return {
        "batch": point.batch,
        "rows": point.rows,
        "context": point.context,
        "ms": 1e3 * point.seconds,
    }
