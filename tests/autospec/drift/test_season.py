"""The seasonal reference: what it learns from few days and from many, and what it ignores."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.autospec.drift.evidence import gather
from paceline.autospec.drift.season import Season, fit_season
from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.simulate.world import MONDAY, SimulationPlan
from paceline.autospec.sums import FloatArray, IntArray, moments
from tests.autospec.traffic import drawn_seeds, simulated_cells

HOURS = np.arange(24)
WAVE = 0.1 * np.cos(2 * np.pi * HOURS / 24)  # of AL, relative


def traffic(days: int, al: FloatArray, seed: int = 0, requests: int = 40) -> FloatArray:
    """Return sums [6, 1, days, 24] of requests around `al`, which broadcasts to [days, 24]."""
    rng = np.random.default_rng(seed)
    norm = np.broadcast_to(al, (days, 24))[..., None]
    rounds = rng.integers(10, 40, (days, 24, requests)).astype(float)
    tokens = rounds * norm * (1 + 0.3 * rng.standard_normal(rounds.shape))
    return moments(tokens, rounds).sum(3)[:, None]


def fit(sums: FloatArray, weekday: IntArray | None = None) -> Season:
    days = sums.shape[2]
    weekday = np.arange(days) % 7 if weekday is None else weekday
    return fit_season(sums, np.ones(sums.shape[1:], bool), weekday[None], 0.01)


def test_hours_of_the_day_are_learnt_from_few_days() -> None:
    season = fit(traffic(4, 4 * (1 + WAVE)))
    learnt = season.by_hour[0].mean(0) / season.level[0] - 1
    assert np.abs(learnt - WAVE).max() < 0.06
    assert np.corrcoef(learnt, WAVE)[0, 1] > 0.95


def test_noise_is_not_taken_for_a_season() -> None:
    season = fit(traffic(4, np.array(4.0), requests=4))
    assert np.ptp(season.by_hour[0]) / 4 < 0.05  # the hours' own means differ by more than 20 %


def test_weekends_and_days_are_learnt_from_weeks() -> None:
    al = np.full((28, 24), 4.0)
    al[np.arange(28) % 7 >= 5] *= 0.92
    al[np.arange(28) % 7 == 2] *= 1.05
    by_day = fit(traffic(28, al)).by_hour[0].mean(1)
    plain = by_day[[0, 1, 3, 4]].mean()
    assert by_day[5:].mean() / plain == pytest.approx(0.92, abs=0.01)
    assert 1.02 < by_day[2] / plain < 1.055  # shrunk: one odd day of seven may be chance


def test_one_odd_day_moves_the_reference_little() -> None:
    al = np.full((21, 24), 4.0)
    al[9] *= 0.6  # an incident
    season = fit(traffic(21, al))
    plain = 4.0 * (1 - 0.4 / 21)
    assert season.level[0] > plain + 0.02
    assert season.by_hour[0].mean() > 3.95


def test_a_row_without_requests_has_no_reference() -> None:
    season = fit_season(
        np.zeros((6, 2, 3, 24)), np.ones((2, 3, 24), bool), np.zeros((2, 3), int), 0.01
    )
    assert np.isnan(season.level).all() and season.days.tolist() == [0, 0]


def test_errors_say_how_far_changes_really_scatter() -> None:
    """In steady traffic, change ÷ error has a standard deviation of about 1."""
    policy, plan = AutospecPolicy().drift, SimulationPlan(event="season", days=40)
    scores = []
    for seed in (seeds := drawn_seeds(40)):
        cells = simulated_cells(plan, seed, 40)
        evidence = gather(cells, np.zeros(2, int), MONDAY + 24 * 40, policy)
        scores += (evidence.change / evidence.error).tolist()
    assert 0.7 < np.std(scores) < 1.35, seeds[0]
    assert np.abs(scores).max() < 5, seeds[0]
