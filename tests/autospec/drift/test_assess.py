"""What an assessment decides, and why not something else."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from paceline.autospec.drift import (
    DriftDecision,
    DriftKind,
    DriftReport,
    HourCells,
    Ledger,
    LedgerEntry,
    LedgerKind,
    assess,
)
from paceline.autospec.drift.cells import DAY
from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.simulate.world import SimulationPlan
from tests.autospec.traffic import NORTH, SOUTH, at_day, simulated_cells

POLICY = AutospecPolicy()
BUSY = 120.0  # requests an hour: enough that these tests do not depend on the seed
Reports = list[DriftReport]


@cache
def cells(event: str, size: float = 0.08, days: int = 40, at: float = 35.0) -> HourCells:
    when = None if event == "season" else at
    plan = SimulationPlan(event=event, days=max(days, 70), at=when, size=size, requests=BUSY)
    return simulated_cells(plan, 5, days)


def reports_on(event: str, day: float, *entries: LedgerEntry, policy: AutospecPolicy = POLICY,
               **plan: float) -> Reports:  # fmt: skip
    return assess(cells(event, **plan), Ledger(entries), at_day(day), policy)


def found(reports: Reports, kind: DriftKind) -> DriftReport:
    (report,) = [report for report in reports if report.kind is kind]
    return report


def decisions(reports: Reports) -> set[DriftDecision]:
    return {report.decision for report in reports}


def test_a_fall_waits_for_days_and_then_leads_to_one_training() -> None:
    early = found(reports_on("drop", 37), DriftKind.WITHIN)
    assert early.decision is DriftDecision.WAIT
    assert any("of the last 3 days show it; all must" in said for said in early.why_not)
    report = found(reports_on("drop", 38), DriftKind.WITHIN)
    assert report.decision is DriftDecision.RETRAIN and len(report.cohorts) == 1
    assert report.change == pytest.approx(-0.08, abs=0.02)
    assert report.now / report.before - 1 == pytest.approx(report.change, abs=0.01)
    assert report.end - report.start == 3 * DAY and report.end == at_day(38)
    assert report.worth is not None and report.worth.pays and report.why_not == ()
    assert "Training is expected to save" in report.why[-1]


def test_what_is_done_already_is_not_done_twice() -> None:
    cohort = found(reports_on("drop", 38), DriftKind.WITHIN).cohorts
    running = LedgerEntry(LedgerKind.TRAINING, at_day(38), frozenset(cohort))
    report = found(reports_on("drop", 39, running), DriftKind.WITHIN)
    assert report.decision is DriftDecision.WAIT
    assert f"Another drafter for {cohort[0]} is under way already." in report.why_not


def test_a_training_that_does_not_pay_is_not_begun() -> None:
    poor = AutospecPolicy.read({"retrain": {"training_hours": 400.0}})
    report = found(reports_on("drop", 38, policy=poor), DriftKind.WITHIN)
    assert report.decision is DriftDecision.NOTHING
    assert "and cost 801.00" in report.why_not[0]


def test_after_a_swap_the_reference_begins_anew() -> None:
    swap = LedgerEntry(LedgerKind.SWAP, at_day(38))
    reports = reports_on("drop", 40, swap)
    assert found(reports, DriftKind.LEARNING).cohorts == (NORTH, SOUTH)
    assert DriftDecision.RETRAIN not in decisions(reports)


def test_a_lasting_fall_does_not_become_the_reference() -> None:
    long_after = reports_on("drop", 60, days=60)
    assert found(long_after, DriftKind.WITHIN).change == pytest.approx(-0.08, abs=0.02)


def test_a_slow_fall_is_seen() -> None:
    """The reference is a drafter's first weeks, not the last ones."""
    slow = cells("season", days=80)
    factor = 1 - 0.1 * np.clip((np.arange(80 * 24) / 24 - 28) / 50, 0, 1)
    sums = slow.sums.copy()
    for column, power in ((1, 1), (4, 1), (3, 2)):
        sums[column, 0] *= factor**power
    reports = assess(HourCells(slow.cohorts, slow.start, sums), Ledger(), at_day(80), POLICY)
    report = found(reports, DriftKind.WITHIN)
    assert report.cohorts == (NORTH,) and report.change < -0.07


def test_a_deployment_is_rolled_back_and_never_trained_for() -> None:
    for day in (36, 37, 38, 40):
        reports = reports_on("deployment", day)
        report = found(reports, DriftKind.DEPLOYMENT)
        assert report.decision is DriftDecision.OFFER_ROLLBACK
        assert set(report.cohorts) == {NORTH, SOUTH}
        assert abs(report.start - at_day(35)) <= 12 * 3600
        assert DriftDecision.RETRAIN not in decisions(reports)


def test_an_unsettled_deployment_stays_one() -> None:
    finding = LedgerEntry(LedgerKind.FINDING, at_day(35))
    report = found(reports_on("deployment", 58, finding, days=60), DriftKind.DEPLOYMENT)
    assert "The step of 23 days ago is not settled" in report.why[0]
    settled = LedgerEntry(LedgerKind.FINDING, at_day(35), end=at_day(36))
    accepted = LedgerEntry(LedgerKind.ACCEPTED, at_day(36))
    after = reports_on("deployment", 58, settled, accepted, days=60)
    assert {report.kind for report in after} <= {DriftKind.STEADY, DriftKind.SEASON}


def test_a_fall_of_one_cohort_at_a_known_deployment_is_its_fault() -> None:
    deployed = LedgerEntry(LedgerKind.DEPLOYMENT, at_day(35))
    report = found(reports_on("drop", 39, deployed), DriftKind.WITHIN)
    assert report.decision is DriftDecision.OFFER_ROLLBACK
    assert "hours of a deployment" in report.why_not[0]


def test_other_shares_are_mix_and_lead_to_routes() -> None:
    reports = reports_on("mix", 38)
    report = found(reports, DriftKind.MIX)
    assert report.decision is DriftDecision.PROPOSE_ROUTES
    assert report.mix < -0.2 and abs(report.within) < 0.1
    assert report.mix + report.within == pytest.approx(report.now - report.before)
    assert "No retrain for this" in report.why_not[0]
    assert DriftDecision.RETRAIN not in decisions(reports)


def test_loops_alert() -> None:
    report = found(reports_on("repetition", 36, size=0.2), DriftKind.REPETITION)
    assert report.decision is DriftDecision.ALERT and report.change > 0.1
    assert "of at most 8.0" in report.why[0]


def test_after_a_loop_the_usual_acceptance_is_no_fall() -> None:
    looping = cells("repetition", size=0.3, at=25.0)
    calm = cells("season")
    sums = np.concatenate([looping.sums[:, :, : 30 * 24], calm.sums[:, :, 30 * 24 :]], 2)
    mended = HourCells(looping.cohorts, looping.start, sums)
    for day in (33, 36, 40):
        reports = assess(mended, Ledger(), at_day(day), POLICY)
        assert DriftKind.WITHIN not in {report.kind for report in reports}


def test_the_hour_of_the_day_is_season() -> None:
    calm = cells("season")
    kinds = [
        {report.kind for report in assess(calm, Ledger(), at_day(day), POLICY)}
        for day in np.arange(30, 32, 0.25)
    ]
    assert any(DriftKind.SEASON in kind for kind in kinds)
    assert all(kind <= {DriftKind.SEASON, DriftKind.STEADY} for kind in kinds)


def test_a_fresh_cohort_is_learnt_and_not_judged() -> None:
    (report,) = reports_on("season", 4)
    assert report.kind is DriftKind.LEARNING and report.decision is DriftDecision.WAIT
    assert "3 are needed" in report.why[0]


def test_in_the_first_weeks_a_fall_must_last_a_week() -> None:
    waiting = found(reports_on("drop", 13, at=9.0), DriftKind.WITHIN)
    assert waiting.decision is DriftDecision.WAIT
    assert any("a whole week since its weekends" in said for said in waiting.why_not)
    assert found(reports_on("drop", 17, at=9.0), DriftKind.WITHIN).decision is DriftDecision.RETRAIN


def test_no_traffic_is_no_finding() -> None:
    (report,) = assess(HourCells(), Ledger(), at_day(3), POLICY)
    assert report.kind is DriftKind.STEADY and "No drafted request" in report.why[0]
    quiet = assess(cells("season"), Ledger(), at_day(90), POLICY)
    assert DriftDecision.RETRAIN not in decisions(quiet)


def test_the_same_requests_give_the_same_reports() -> None:
    whole = cells("drop")
    parts = [
        HourCells(whole.cohorts, whole.start + first, whole.sums[:, :, first : first + 100])
        for first in range(0, whole.sums.shape[2], 100)
    ]
    again = HourCells()
    for part in reversed(parts):
        again = again + HourCells.from_bytes(part.to_bytes())
    reports = assess(again, Ledger(), at_day(38), POLICY)
    assert reports == assess(whole, Ledger(), at_day(38), POLICY)
    assert reports[0].as_json()["kind"] == "within"
    assert reports[0].sentences().startswith("within: retrain (")
