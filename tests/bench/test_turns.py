"""Bootstrap intervals: one way to draw, and what each ratio makes of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from paceline.bench.turns import (
    DRAWS,
    bootstrap,
    change_interval,
    pooled_interval,
    ratio_interval,
)


def test_the_same_numbers_have_the_same_interval() -> None:
    above, below = [3.0, 1.0, 4.0, 1.0, 5.0], [1.0, 1.0, 2.0, 1.0, 2.0]
    assert pooled_interval(above, below) == pooled_interval(above, below)
    assert ratio_interval(above, below) == ratio_interval(above, below)


def test_a_statistic_gets_every_draw_and_its_value_may_be_missing() -> None:
    shapes = []

    def statistic(drawn: np.ndarray) -> np.ndarray:
        shapes.append(drawn.shape)
        values = np.where(np.arange(len(drawn)) % 2 == 0, np.nan, 7.0)
        return values

    assert bootstrap(3, statistic) == [7.0, 7.0]
    assert shapes == [(DRAWS, 3)]
    assert bootstrap(3, lambda drawn: np.full(len(drawn), np.nan)) is None


def test_pooled_intervals_cover_the_truth_as_often_as_they_say() -> None:
    inside = 0
    for seed in range(100):
        rng = random.Random(seed)
        below = [rng.randint(5, 20) for _ in range(40)]
        above = [sum(rng.randint(1, 5) for _ in range(count)) for count in below]
        interval = pooled_interval(above, below)
        assert interval is not None
        inside += interval[0] <= 3.0 <= interval[1]
    assert inside >= 86


def test_few_requests_and_empty_sums_have_no_interval() -> None:
    assert pooled_interval([1.0] * 4, [1.0] * 4) is None
    assert pooled_interval([0.0] * 8, [0.0] * 8) is None
    assert pooled_interval([2.0] * 8, [1.0] * 8) == [2.0, 2.0]


def test_a_change_is_drawn_over_the_same_requests() -> None:
    """Requests differ much, their changes do not: drawn apart, the interval would be wide."""
    rounds = np.array([10.0, 200.0, 3.0, 40.0, 7.0, 90.0])
    before = np.stack([rounds * [1, 2, 3, 4, 5, 6], rounds], axis=1)
    after = before * [1.1, 1.0]
    interval = change_interval(before, after)
    assert interval == pytest.approx([1.1, 1.1])
    assert change_interval(before[:4], after[:4]) is None


def test_requests_without_rounds_do_not_break_a_change() -> None:
    before = np.array([[4.0, 2.0]] + [[0.0, 0.0]] * 5)
    interval = change_interval(before, before)
    assert interval == [1.0, 1.0]
