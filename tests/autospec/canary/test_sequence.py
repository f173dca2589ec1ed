"""Confidence sequences hold at every look; a z-test that is looked at does not."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.autospec.canary.sequence import ArmDifference, compare_arms, sequence_radius
from paceline.autospec.policy import CanaryPolicy
from paceline.autospec.sums import FloatArray, moments
from tests.autospec.traffic import drawn_seeds

POLICY = CanaryPolicy()
ALPHA = 0.7 * POLICY.alpha  # what tokens per round get of it
LOOK = 25  # canary requests between looks


def answers(rng: np.random.Generator, shape: tuple[int, ...], al: float) -> FloatArray:
    """Return the summands of requests whose ALs differ and whose lengths are heavy-tailed."""
    rounds = 1.0 + rng.geometric(1 / 25, shape)
    mean = np.clip(al + 0.9 * rng.standard_normal(shape), 1.05, None)
    return moments(np.maximum(rounds, rng.standard_gamma(6 * rounds) * mean / 6), rounds)


def looks(seed: int, runs: int, requests: int, al: float, share: float = 0.1) -> ArmDifference:
    """Compare a canary with a live drafter of AL 4 at every look, [runs, looks]."""
    rng, steps = np.random.default_rng(seed), requests // LOOK
    live = int(LOOK * (1 - share) / share)
    arms = [
        answers(rng, (runs, steps, size), mean).sum(-1).cumsum(-1)[:, None]
        for size, mean in ((LOOK, al), (live, 4.0))
    ]
    return compare_arms(*arms)


def first_failure(compared: ArmDifference) -> FloatArray:
    """Return the canary requests after which each run fails; infinity where none does."""
    _, high = compared.bounds(ALPHA, POLICY.tuned_requests)
    requests = LOOK * np.arange(1, high.shape[1] + 1)
    failed = (high < 0) & (requests >= POLICY.least_requests)
    return np.where(failed.any(1), requests[failed.argmax(1)], np.inf)


def z_test_fires(compared: ArmDifference) -> FloatArray:
    fired: FloatArray = np.abs(compared.difference) > 1.96 * np.sqrt(compared.variance)
    return fired.any(1)


def test_few_runs_show_it() -> None:
    (seed,) = drawn_seeds(1)
    same, worse = looks(seed, 60, 2000, 4.0), looks(seed, 60, 300, 3.6)
    assert np.isfinite(first_failure(same)).mean() <= 0.15, seed
    assert np.isfinite(first_failure(worse)).mean() >= 0.9, seed
    assert z_test_fires(same).mean() > 0.15, seed


@pytest.mark.slow
def test_false_alarms_stay_below_alpha_over_many_looks() -> None:
    seeds = drawn_seeds(20)
    compared = [looks(seed, 50, 6000, 4.0) for seed in seeds]
    failed = np.mean([np.isfinite(first_failure(item)) for item in compared])
    fired = np.mean([z_test_fires(item) for item in compared])
    print(f"1000 A/A runs of 240 looks: {failed:.1%} false alarms, peeking z-test {fired:.1%}")
    assert failed <= POLICY.alpha, seeds[0]
    assert fired > 0.3, seeds[0]


@pytest.mark.slow
def test_a_tenth_less_is_caught_within_300_requests() -> None:
    seeds = drawn_seeds(20)
    first = np.concatenate([first_failure(looks(seed, 100, 300, 3.6)) for seed in seeds])
    print(f"2000 runs: {np.isfinite(first).mean():.1%} caught, median {np.median(first):.0f}")
    assert np.isfinite(first).mean() >= 0.97, seeds[0]
    assert np.median(first) <= 150, seeds[0]


def test_steps_at_different_hours_are_not_pooled() -> None:
    """The canary gets 5 % at night, when AL is high, and 50 % by day: pooled, it would look bad."""
    rng = np.random.default_rng(4)
    canary = [answers(rng, (size,), al).sum(-1) for size, al in ((500, 5.0), (5000, 3.0))]
    live = [answers(rng, (size,), al).sum(-1) for size, al in ((9500, 5.0), (5000, 3.0))]
    within = compare_arms(np.stack(canary, 1), np.stack(live, 1))
    assert abs(float(within.difference)) < 0.03
    pooled = compare_arms(sum(canary)[:, None], sum(live)[:, None])
    assert float(pooled.difference) < -0.2


def test_the_radius_is_that_of_the_formula() -> None:
    n, v, alpha, tuned = 300.0, 0.01, 0.025, 250.0
    rho = np.sqrt((-2 * np.log(0.05) + np.log(-2 * np.log(0.05) + 1)) / tuned)
    q = n * rho**2
    plain = np.sqrt(v) * np.sqrt(2 * (q + 1) / q * np.log(np.sqrt(q + 1) / 0.05))
    assert float(sequence_radius(np.array(v), np.array(n), alpha, tuned)) == pytest.approx(plain)


def test_too_few_requests_give_no_difference() -> None:
    rng = np.random.default_rng(0)
    few, many = answers(rng, (5,), 4.0).sum(-1), answers(rng, (500,), 4.0).sum(-1)
    assert np.isnan(compare_arms(few[:, None], many[:, None]).difference)
