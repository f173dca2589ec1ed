"""Sides measured in turns, so that a machine that slows down does so for all of them; and ratios of
what was measured next to each other."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

DRAWS = 2000
Value = TypeVar("Value")


def in_turns(
    sides: Mapping[str, Callable[[], Value]], rounds: int, warm_up: int = 1
) -> dict[str, list[Value]]:
    """Calls every side once per round, in an order that changes; returns what each one gave, the
    rounds of warm-up aside."""
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
    """Median of the paired ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Median of the paired ratios and its bootstrap 95% interval; always the same for the same
    numbers."""
    rng = random.Random(0)
    pairs = [a / b for a, b in zip(above, below, strict=True)]
    medians = sorted(statistics.median(rng.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    return statistics.median(pairs), medians[DRAWS // 40], medians[-DRAWS // 40 - 1]
