"""The policy on simulated traffic, beside ADWIN on the raw stream of all requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from river import drift

from paceline.autospec.drift import DriftKind
from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.simulate.run import SimulatedRun, control_alarms, simulate
from paceline.autospec.simulate.summary import summarise
from paceline.autospec.simulate.world import SimulationPlan, draw_traffic
from tests.autospec.traffic import drawn_seeds

POLICY = AutospecPolicy()
FOUND_WITHIN = 6  # days
MANY = 500


def runs_of(event: str, seeds: Sequence[int], control: bool = False) -> list[SimulatedRun]:
    return simulate(SimulationPlan(event=event), POLICY, seeds, control=control)


def wrong(event: str, runs: Sequence[SimulatedRun]) -> list[int]:
    """Return the seeds of runs that did not train as they should have."""
    return [run.seed for run in runs if not is_right(event, run)]


def is_right(event: str, run: SimulatedRun) -> bool:
    if event != "drop":
        return run.retrains == []
    if len(run.retrains) != 1 or run.event is None:
        return False
    return 0 <= run.retrains[0] - run.event <= FOUND_WITHIN


@pytest.mark.parametrize("event", ["season", "mix", "drop", "deployment", "repetition"])
def test_the_policy_trains_for_a_fall_in_one_cohort_alone(event: str) -> None:
    seeds = drawn_seeds(6)
    runs = runs_of(event, seeds)
    assert len(wrong(event, runs)) <= 1, f"seeds from {seeds[0]}"
    kind = DriftKind.WITHIN if event == "drop" else DriftKind(event)
    found = [any(report.kind is kind for _, report in run.decisions) for run in runs]
    assert sum(found) >= 5, f"seeds from {seeds[0]}"


@pytest.mark.parametrize("event", ["season", "mix", "drop"])
def test_the_control_fires_about_daily(event: str) -> None:
    seeds = drawn_seeds(3)
    summary = summarise(runs_of(event, seeds, control=True), 70, control=True)
    assert summary.control_a_day is not None
    assert summary.control_a_day > 0.6, f"seeds from {seeds[0]}"


def test_the_control_is_what_river_says() -> None:
    traffic = draw_traffic(SimulationPlan(event="season", days=21), drawn_seeds(1)[0])
    values = traffic.acceptance_lengths
    judge, alarms = drift.ADWIN(), 0
    for value in values:
        judge.update(float(value))
        alarms += judge.drift_detected
    own = control_alarms(values, traffic.hour)
    assert len(own) == pytest.approx(alarms, rel=0.25, abs=3)


def test_a_seed_gives_the_same_run_alone_and_among_others() -> None:
    seeds = drawn_seeds(4)
    alone = runs_of("drop", seeds[2:3])[0]
    among = runs_of("drop", seeds)[2]
    assert alone.retrains == among.retrains and alone.event == among.event
    assert [(day, r.kind) for day, r in alone.decisions] == [
        (day, r.kind) for day, r in among.decisions
    ]


def test_traffic_is_that_of_two_hemispheres() -> None:
    traffic = draw_traffic(SimulationPlan(event="season"), 1)
    north = traffic.cohort == 0
    hour = traffic.hour % 24
    assert np.median(np.abs(hour[north] - 14)) < 4
    assert len(traffic.hour) / 70 / 24 == pytest.approx(30, rel=0.03)
    assert traffic.acceptance_lengths[north].mean() == pytest.approx(5.2, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "most_wrong"),
    [
        ("season", 0.004),
        ("mix", 0.004),
        ("drop", 0.01),
        ("deployment", 0.006),
        ("repetition", 0.004),
    ],
)
def test_many_runs(event: str, most_wrong: float) -> None:
    seeds = drawn_seeds(MANY)
    runs = runs_of(event, seeds)
    print(event, summarise(runs, 70, control=False))
    failed = wrong(event, runs)
    assert len(failed) <= most_wrong * MANY, f"seeds {failed[:5]}"


@pytest.mark.slow
@pytest.mark.parametrize("event", ["season", "mix", "drop"])
def test_the_control_over_many_runs(event: str) -> None:
    seeds = drawn_seeds(60)
    summary = summarise(runs_of(event, seeds, control=True), 70, control=True)
    print(event, summary)
    assert summary.control_a_day is not None and summary.control_a_day > 0.8, seeds[0]
