"""CUSUM against river's Page-Hinkley test, its own plain loop, and the alarms that it promises."""

from __future__ import annotations

import numpy as np
import pytest
from river import drift

from paceline.autospec.drift.cusum import Cusum, statistics, threshold
from tests.autospec.traffic import drawn_seeds


@pytest.mark.parametrize("run", range(12))
def test_alarms_are_those_of_page_hinkley(run: int) -> None:
    """The Page-Hinkley test is CUSUM of deviations from the running mean."""
    seed = drawn_seeds(1)[0]
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(0, 1, 400), rng.normal(1.2, 1, 400)])
    judge = drift.PageHinkley(min_instances=1, delta=0.3, threshold=25, alpha=1.0, mode="up")
    detector, mean = Cusum(allowance=0.3, threshold=25), 0.0
    for index, value in enumerate(values):
        mean += (value - mean) / (index + 1)
        judge.update(float(value))
        assert detector.update(value - mean) == judge.drift_detected
        if judge.drift_detected:
            return
    pytest.fail("neither saw a step of 1.2 standard deviations")


def test_whole_arrays_give_what_the_loop_gives() -> None:
    values = np.random.default_rng(2).normal(0.1, 1, (3, 500))
    for row, found in zip(values, statistics(values - 0.25), strict=True):
        detector = Cusum(allowance=0.25, threshold=np.inf)
        for value, statistic in zip(row, found, strict=True):
            detector.update(value)
            assert detector.statistic == pytest.approx(statistic)


@pytest.mark.parametrize(("allowance", "run_length"), [(0.25, 300), (0.1, 1000)])
def test_false_alarms_come_as_seldom_as_promised(allowance: float, run_length: float) -> None:
    limit = float(threshold(allowance, run_length))
    values = np.random.default_rng(3).normal(0, 1, (400, int(12 * run_length)))
    above = statistics(values - allowance) > limit
    first = np.where(above.any(1), above.argmax(1) + 1, above.shape[1])
    assert first.mean() == pytest.approx(run_length, rel=0.2)
