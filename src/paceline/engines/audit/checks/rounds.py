"""Rounds of answers, and whether acceptance fell between two groups of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from paceline.engines.answers import EngineAnswer

LEAST_ROUNDS = 30  # on both sides of a comparison
SURE = 5.0  # standard errors between the two
DIES = "is dead"
DEAD, COLLAPSED, DECAYED = 0.05, 0.25, 0.6  # of the accepted tokens per round before


class RoundView(NamedTuple):
    """A round of an answer. `position` counts the answer's tokens before it; `drafted` is None
    where it was read from the stream alone."""

    position: int
    drafted: int | None
    accepted: int


def rounds_of(answer: EngineAnswer) -> list[RoundView]:
    """Return the rounds that may have drafted: as the engine tells them, or, where it does not,
    the events of the stream, each of which holds the tokens of one round."""
    if answer.rounds is not None:
        told = [RoundView(*each) for each in answer.rounds]
        return [each for each in told if each.drafted]
    position, views = 0, list[RoundView]()
    for _, burst in groupby(answer.arrivals):
        size = len(list(burst))
        views.append(RoundView(position, None, size - 1))
        position += size
    return views[1:]  # the first comes from the prompt's own step


def all_rounds(answers: Iterable[EngineAnswer]) -> list[RoundView]:
    return [each for answer in answers for each in rounds_of(answer)]


def mean_al(rounds: Sequence[RoundView]) -> float | None:
    """Return AL incl. bonus; None without rounds."""
    return 1 + statistics.mean(each.accepted for each in rounds) if rounds else None


class Fall(NamedTuple):
    """Acceptance of later rounds beside earlier ones: the ratio of accepted tokens per round."""

    ratio: float
    errors: float  # standard errors between the two means

    @property
    def words(self) -> str | None:
        """Return how bad it is; None where it is not."""
        if self.errors < SURE or self.ratio >= DECAYED:
            return None
        if self.ratio < DEAD:
            return DIES
        return "collapses" if self.ratio < COLLAPSED else "decays"


def fall(before: Sequence[RoundView], after: Sequence[RoundView]) -> Fall | None:
    """Compare rounds with earlier ones; None where either side has too few, or accepted nothing
    before. The rounds of an answer hang together: SURE leaves room for that."""
    if min(len(before), len(after)) < LEAST_ROUNDS:
        return None
    earlier, later = ([float(each.accepted) for each in side] for side in (before, after))
    base, mean = statistics.mean(earlier), statistics.mean(later)
    if base <= 0:
        return None
    error = math.sqrt(
        statistics.variance(earlier) / len(earlier) + statistics.variance(later) / len(later)
    )
    return Fall(mean / base, (base - mean) / error if error else math.inf * (base > mean) or 0.0)
