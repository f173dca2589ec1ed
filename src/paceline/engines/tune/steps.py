"""Steps of an engine, taken from the times at which tokens of concurrent answers arrived."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.engines.answers import EngineAnswer

Numbers = NDArray[np.float64]
HELD_UP = 2.5  # a step that took so many times the median was held up by something else
JITTER = 0.002  # seconds by which answers of one step arrive apart


class Step(NamedTuple):
    """One step of an engine: its seconds, and the tokens that all its requests got."""

    seconds: float
    tokens: int


def steps_of(answers: Sequence[EngineAnswer], requests: int) -> list[Step]:
    """Return the steps in which exactly `requests` answers were decoded and no prompt was computed.

    A step is the time between two arrivals of one answer. The answer with the most arrivals tells
    them: a reader that falls behind gets the tokens of two steps at once.
    """
    steps = [
        step
        for start, end in _windows(answers, requests)
        for step in _steps_between(answers, start, end)
    ]
    if not steps:
        return []
    usual = float(np.median([step.seconds for step in steps]))
    return [step for step in steps if step.seconds < HELD_UP * usual]


def bursts(answer: EngineAnswer) -> list[tuple[float, int]]:
    """Return when tokens of an answer arrived, and how many came together."""
    return [(at, len(list(group))) for at, group in groupby(answer.arrivals)]


def mean_seconds(steps: Sequence[Step], draws: int, seed: int = 0) -> Numbers:
    """Return the mean seconds of a step, drawn anew `draws` times: [draws]."""
    seconds = np.array([step.seconds for step in steps])
    drawn = np.random.default_rng(seed).integers(0, len(seconds), (draws, len(seconds)))
    means: Numbers = seconds[drawn].mean(1)
    return means


def _windows(answers: Sequence[EngineAnswer], requests: int) -> Iterator[tuple[float, float]]:
    """Yield the times in which so many answers were decoded and no other was waited for."""
    changes = []
    for answer in answers:
        if answer.arrivals:
            first, last = answer.arrivals[0], answer.arrivals[-1]
            changes += [(answer.started, 1, 0), (first, -1, 1), (last, 0, -1)]
    waiting = decoding = 0
    before = 0.0
    for at, more_waiting, more_decoding in sorted(changes):
        if not waiting and decoding == requests and at > before:
            yield before, at
        waiting, decoding, before = waiting + more_waiting, decoding + more_decoding, at


def _steps_between(answers: Sequence[EngineAnswer], start: float, end: float) -> Iterator[Step]:
    inside = [
        [each for each in bursts(answer) if start - JITTER <= each[0] <= end + JITTER]
        for answer in answers
    ]
    times = [at for at, _ in max(inside, key=len)]
    for before, after in pairwise(times):
        late = min(JITTER, (after - before) / 3)
        tokens = sum(
            count for own in inside for at, count in own if before + late < at <= after + late
        )
        yield Step(after - before, tokens)
