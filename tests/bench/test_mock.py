"""Mocked acceptance: exact in the mean, drawn for each request, and never passed off as real."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from paceline.bench.mock import report as mock_report
from paceline.bench.mock.measure import measure, summary
from paceline.bench.mock.plan import WARM_UP, Cell, MockPlan
from paceline.bench.mock.predict import CALIBRATED, ROOFLINE, predict
from paceline.bench.mock.setup import MockDrafting, read_target
from paceline.bench.steps.grid import prompts
from paceline.bench.steps.groups import Steady, TimedStep
from paceline.core import InvalidRequest, SpeculativeParams
from paceline.engine.verify import make_verifier
from paceline.roofline.acceptance import Profile
from paceline.roofline.device import Calibration, Hardware
from tests.bench.mocks import config_file, mocked, of_lengths
from tests.roofline.golden import variance

SIGMAS = 4.0
DEVICE = Hardware(
    name="device", memory_bandwidth=1e10, peak={"bf16": 1e11, "fp32": 1e11}, memory=1e10
)


def deviation(cell: Cell, rounds: int) -> float:
    """Standard deviation of the mean commit of so many rounds."""
    return math.sqrt(variance(cell.acceptance, cell.draft_length) / rounds)


@pytest.mark.parametrize("length", [1.0, 1.5, 4.0, 8.0])
def test_a_long_run_has_the_acceptance_length_that_was_set(tmp_path: Path, length: float) -> None:
    plan = of_lengths(length, batches=(4,), steps=100, context=450)
    (found,) = measure(mocked(tmp_path, plan), plan)
    bound = SIGMAS * deviation(found.cell, 4 * 100) + 1e-9
    assert found.cell.acceptance_length == pytest.approx(length)
    assert abs(found.al - length) <= bound
    if length in (1.0, 8.0):  # nothing is accepted, or everything: there is nothing to draw
        assert found.al == length


def test_lengths_rates_and_profiles_that_mean_the_same_are_the_same(tmp_path: Path) -> None:
    rate = 0.7
    length = sum(rate**i for i in range(8))
    survival = [rate**i for i in range(1, 8)]
    same = (
        length,
        Profile.of_conditional([rate] * 7),
        Profile.of_unconditional(survival),
    )
    plan = replace(of_lengths(length), goals=same)
    cells = list(plan.cells())
    assert len(cells) == 3
    for cell in cells:
        assert cell.rates == pytest.approx([rate] * 7)
    found = measure(mocked(tmp_path, plan), plan)
    for each in found:
        assert abs(each.al - length) <= SIGMAS * deviation(each.cell, plan.steps)


def test_every_position_is_accepted_at_its_own_rate(tmp_path: Path) -> None:
    rates = [0.9, 0.2, 0.8]
    plan = MockPlan((Profile.of_conditional(rates),), draft_lengths=(3,), steps=8)
    engine = mocked(tmp_path, replace(plan, batches=(8,), steps=120))
    steady = Steady(engine)
    engine.verifier = make_verifier("synthetic", rates)
    wish = SpeculativeParams(max_draft_len=3, policy="fixed")
    group = steady.begin(prompts(256, 8, 20), wish, seed=5)
    committed = np.array([steady.step(group).committed for _ in range(120)]).ravel()
    for position, survival in enumerate(np.cumprod(rates), start=1):
        share = float((committed > position).mean())
        assert abs(share - survival) < SIGMAS * math.sqrt(survival * (1 - survival) / 960)


def test_each_request_draws_for_itself(tmp_path: Path) -> None:
    """One draw for the whole batch would make the requests of a step agree, and the variance of
    their sum as many times larger as there are requests."""
    batch, steps = 8, 150
    plan = of_lengths(1.5, batches=(batch,), draft_lengths=(1,), steps=steps)
    engine = mocked(tmp_path, plan)
    engine.verifier = make_verifier("synthetic", [0.5])
    steady = Steady(engine)
    wish = SpeculativeParams(max_draft_len=1, policy="fixed")
    # The same text for all: nothing but the seed tells the requests apart.
    group = steady.begin([[1, 2, 3, 4]] * batch, wish, seed=0)
    committed = np.array([steady.step(group).committed for _ in range(steps)])
    independent = batch * 0.25
    assert 0.5 * independent < committed.sum(axis=1).var(ddof=1) < 2 * independent
    alike = np.corrcoef(committed.T)[np.triu_indices(batch, 1)]
    assert abs(alike).max() < SIGMAS / math.sqrt(steps)


def test_both_sides_are_measured_at_the_context_that_was_asked_for(tmp_path: Path) -> None:
    plan = of_lengths(6.0)
    engine = mocked(tmp_path, plan)
    seen: list[float] = []
    step = Steady.step

    def watched(self: Steady, group: object) -> TimedStep:
        done = step(self, group)  # type: ignore[arg-type]
        seen.append(done.context)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Steady, "step", watched)
        (found,) = measure(engine, plan)
    assert len(seen) == 2 * (WARM_UP + plan.steps)
    assert abs(found.context - 300) < 40
    assert abs(np.mean(seen) - 300) < 40


def test_nothing_of_a_mock_is_left_behind(tmp_path: Path) -> None:
    plan = of_lengths(2.0, batches=(1, 3))
    engine = mocked(tmp_path, plan)
    measure(engine, plan)
    assert not engine.has_work
    engine.check_integrity()


def test_speedup_is_the_set_length_times_the_pace_of_neighbouring_steps() -> None:
    cell = next(of_lengths(4.0).cells())
    drift = [1.0 + 0.5 * i for i in range(20)]  # a machine that gets slower and slower
    plain = [TimedStep(0.010 * d, 0.0, (1,), 100.0) for d in drift]
    drafted = [TimedStep(0.020 * d, 0.004 * d, (3 if i % 2 else 5,), 100.0)
               for i, d in enumerate(drift)]  # fmt: skip
    found = summary(cell, plain, drafted)
    assert found.speedup == pytest.approx(2.0)
    assert found.speedup_interval == pytest.approx((2.0, 2.0))
    assert found.al == 4.0
    assert found.al_interval[0] < 4.0 < found.al_interval[1]


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"draft_lengths": (3,)}, "acceptance_length", "at most 4"),
        ({"draft_lengths": (0,)}, "draft_lengths", "1 to 64"),
        ({"draft_lengths": (65,)}, "draft_lengths", "1 to 64"),
        ({"batches": (0,)}, "batches", "1 to"),
        ({"batches": ()}, "batches", "1 to"),
        ({"steps": 2}, "steps", "at least 8"),
        ({"context": 50}, "context", "at least"),
        (
            {"goals": (Profile.of_conditional([0.5, 0.5]),)},
            "draft_lengths",
            "at most 2",
        ),
    ],
)
def test_a_plan_that_cannot_be_is_refused_by_name(changes: dict, field: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        replace(of_lengths(8.0), **changes)
    assert refused.value.field == field
    assert says in str(refused.value)


def test_lengths_that_a_draft_cannot_have_are_left_to_longer_ones() -> None:
    plan = of_lengths(1.0, 4.0, 8.0, draft_lengths=(1, 3, 7))
    cells = [(cell.draft_length, round(cell.acceptance_length, 9)) for cell in plan.cells()]
    assert cells == [(1, 1), (3, 1), (3, 4), (7, 1), (7, 4), (7, 8)]


def test_a_context_longer_than_the_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"context.*4096 tokens"):
        mocked(tmp_path, of_lengths(2.0, context=4090))


def test_measured_beside_predicted_and_both_say_that_it_was_mocked(tmp_path: Path) -> None:
    plan = of_lengths(2.0, 8.0, batches=(1, 2))
    drafting = MockDrafting(cost=0.4)
    engine = mocked(tmp_path, plan, drafting)
    measured = measure(engine, plan)
    target = read_target(str(config_file(tmp_path)))
    slow = Calibration(step_overhead=1e-3)
    predicted = predict(measured, target, drafting, engine, DEVICE, slow)
    for each, tiers in zip(measured, predicted, strict=True):
        assert set(tiers) == {ROOFLINE, CALIBRATED}
        for compared in tiers.values():
            assert compared.ratio == pytest.approx(each.speedup / compared.predicted.speedup)
            assert compared.interval[0] <= compared.ratio <= compared.interval[1]
            assert compared.predicted.draft_seconds > 0
    written = mock_report.as_json(engine, plan, DEVICE, measured, predicted)
    assert written["lossless"] is False and written["mocked"] is True
    assert written["rule"] == "synthetic"
    assert written["drafter"]["share"]["layers"] >= 1
    assert [cell["acceptance_length"] for cell in written["cells"]] == pytest.approx([2, 8] * 2)
    assert len(written["points"]) == 8
    assert {point["rows"] for point in written["points"]} == {1, 8}
    assert asdict(measured[0].cell)["batch"] == 1
    shown = mock_report.table(engine, plan, measured, predicted)
    assert "NOT lossless" in str(shown.title) and "random weights" in str(shown.title)
    assert shown.row_count == 4 + 2  # and a line for each batch
