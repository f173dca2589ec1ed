"""Sides measured in turns, and the bootstrap intervals of their ratios."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
FEWEST = 5  # requests that an interval over requests needs
Value = TypeVar("Value")
Numbers = NDArray[np.float64]


def in_turns(
    sides: Mapping[str, Callable[[], Value]], rounds: int, warm_up: int = 1
) -> dict[str, list[Value]]:
    """Call every side once a round, in changing order; return what they gave after the warm-up."""
    order = list(sides)
    rng = random.Random(0)
    measured: dict[str, list[Value]] = {name: [] for name in sides}
    for turn in range(warm_up + rounds):
        rng.shuffle(order)
        for name in order:
            value = sides[name]()
            if turn >= warm_up:
                measured[name].append(value)
    return measured


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the paired ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def bootstrap(count: int, statistic: Callable[[NDArray[np.int64]], Numbers]) -> list[float] | None:
    """Return the 95% bootstrap interval of a statistic over `count` pairs, always the same one.

    `statistic` takes the pairs that are drawn, their indices [DRAWS, count], and returns a value
    for each draw, NaN where a draw has none. None where no draw has a value.
    """
    drawn = np.random.default_rng(0).integers(0, count, (DRAWS, count))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = statistic(drawn)
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    return [float(edge) for edge in np.percentile(values, [2.5, 97.5])]


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of the paired ratios and its 95% bootstrap interval."""
    ratios = np.asarray(above, dtype=float) / np.asarray(below, dtype=float)
    interval = bootstrap(len(ratios), lambda drawn: np.median(ratios[drawn], axis=1))
    low, high = interval or (float("nan"), float("nan"))
    return float(np.median(ratios)), low, high


def pooled_interval(above: Sequence[float], below: Sequence[float]) -> list[float] | None:
    """Return the 95% interval of sum(above) ÷ sum(below); None for fewer than FEWEST requests."""
    if len(above) < FEWEST:
        return None
    tops, bottoms = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    return bootstrap(len(above), lambda drawn: tops[drawn].sum(1) / bottoms[drawn].sum(1))


def change_interval(before: Numbers, after: Numbers) -> list[float] | None:
    """Return the 95% bootstrap interval of the ratio of two pooled ratios, after ÷ before.

    Each is [requests, 2]: what stands above, and what stands below. The same requests are drawn for
    both. None for fewer than FEWEST requests.
    """
    if len(before) < FEWEST:
        return None

    def changes(drawn: NDArray[np.int64]) -> Numbers:
        old, new = before[drawn].sum(1), after[drawn].sum(1)
        ratios: Numbers = (new[:, 0] / new[:, 1]) / (old[:, 0] / old[:, 1])
        return ratios

    return bootstrap(len(before), changes)
