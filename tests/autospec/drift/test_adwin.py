"""ADWIN against river's, and against the slow and obvious way to cut a window."""

from __future__ import annotations

import numpy as np
import pytest
from river import drift

from paceline.autospec.drift.adwin import Adwin, cut_bound, strongest_cut
from paceline.autospec.sums import FloatArray
from tests.autospec.traffic import drawn_seeds

DELTA = 0.002


def stream(seed: int) -> FloatArray:
    """Return values with a step somewhere."""
    rng = np.random.default_rng(seed)
    before = rng.normal(4, 1.3, rng.integers(50, 3000))
    return np.concatenate([before, rng.normal(4 + rng.uniform(-2, 2), 1.3, 1500)])


def alarms_of_river(values: FloatArray) -> list[int]:
    judge, alarms = drift.ADWIN(delta=DELTA), []
    for index, value in enumerate(values):
        judge.update(float(value))
        if judge.drift_detected:
            alarms.append(index)
    return alarms


@pytest.mark.parametrize("run", range(12))
def test_alarms_are_those_of_river(run: int) -> None:
    seed = drawn_seeds(1)[0]
    values = stream(seed)
    detector = Adwin(DELTA, restart=True)
    assert [i for i, value in enumerate(values) if detector.update(value)] == alarms_of_river(
        values
    )


@pytest.mark.parametrize("run", range(3))
def test_width_and_mean_are_those_of_river(run: int) -> None:
    seed = drawn_seeds(1)[0]
    judge, detector = drift.ADWIN(delta=DELTA), Adwin(DELTA)
    for value in np.random.default_rng(seed).normal(4, 1, 2000):
        judge.update(float(value))
        detector.update(value)
        if judge.drift_detected:  # river starts anew, we keep the newer part
            return
        assert detector.width == judge.width
        assert detector.mean == pytest.approx(judge.estimation)


def test_coarse_buckets_find_a_step_as_well() -> None:
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(4, 1, 3200), rng.normal(3.6, 1, 1600)])
    (first, *_) = Adwin(DELTA, clock=32, grain=32).update_many(values)
    assert 3200 <= first < 3200 + 640


def test_the_newer_part_is_kept() -> None:
    detector = Adwin(DELTA)
    for value in [4.0, 4.1] * 500 + [1.0, 1.1] * 200:
        detector.update(value)
    assert detector.width <= 416 and detector.mean == pytest.approx(1.05, abs=0.05)


@pytest.mark.parametrize("run", range(8))
def test_the_strongest_cut_is_that_of_trying_all(run: int) -> None:
    seed = drawn_seeds(1)[0]
    rng = np.random.default_rng(seed)
    groups = [rng.normal(0.4 * (index > 30), 1, rng.integers(1, 9)) for index in range(60)]
    counts = np.array([[len(group) for group in groups]], float)
    totals = np.array([[group.sum() for group in groups]])
    squared = np.array([[(group**2).sum() for group in groups]])
    place, is_cut, step = strongest_cut(counts, totals, squared, DELTA, (np.ones(1), np.ones(1)))

    whole = np.concatenate(groups)
    best = max(range(1, 60), key=lambda k: strength(groups, k))
    before, after = np.concatenate(groups[:best]), np.concatenate(groups[best:])
    assert place[0] == best
    assert step[0] == pytest.approx(after.mean() - before.mean())
    sizes = np.array(float(before.size)), np.array(float(after.size))
    assert bool(is_cut[0]) == bool(abs(step[0]) > cut_bound(*sizes, whole.var(), DELTA))


def strength(groups: list[FloatArray], k: int) -> float:
    before, after = np.concatenate(groups[:k]), np.concatenate(groups[k:])
    step: float = after.mean() - before.mean()
    return step**2 / (1 / before.size + 1 / after.size)
