"""Falls within cohorts: which are real and lasting, and whether to train a drafter for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from paceline.autospec.drift.case import DriftCase
from paceline.autospec.drift.cells import HOUR
from paceline.autospec.drift.deployment import are_all, others_fall
from paceline.autospec.drift.report import (
    DriftDecision,
    DriftKind,
    DriftReport,
    FallenCohort,
)
from paceline.autospec.drift.worth import objections, retrain_worth
from paceline.autospec.sums import BoolArray, FloatArray, IntArray


def within_reports(case: DriftCase, open_rows: BoolArray) -> list[DriftReport]:
    """Return the findings about falls and rises of the `open_rows`, for which no other cause is
    known: one for all lasting falls together, one for each fall that is watched."""
    evidence, policy = case.evidence, case.policy.drift
    is_open = open_rows & evidence.ready
    lasting = is_open & lasting_falls(case)
    reports = []
    if lasting.any():
        reports.append(_fall(case, np.flatnonzero(lasting)))
    limit = np.maximum(policy.drop, 2 * evidence.error)
    watched = is_open & ~lasting & (evidence.change < 0)
    watched &= evidence.alarmed | (evidence.change <= -limit)
    watched &= evidence.change <= -policy.clears
    reports += [_watched(case, row) for row in np.flatnonzero(watched).tolist()]
    risen = is_open & (evidence.change >= np.maximum(policy.drop, policy.sigmas * evidence.error))
    if risen.any():
        reports.append(_rise(case, np.flatnonzero(risen)))
    return reports


def lasting_falls(case: DriftCase) -> BoolArray:
    """Return the rows that pass every gate: size, sureness, days, daily cycle, detector."""
    evidence, policy = case.evidence, case.policy.drift
    passed: BoolArray = (
        evidence.alarmed
        & (evidence.change <= -least_fall(case))
        & _daily(case).all(1)
        & (evidence.median <= -policy.drop)
        & (evidence.covered >= policy.covered)
        & (evidence.requests >= policy.least_requests)
    )
    return passed


def least_fall(case: DriftCase) -> FloatArray:
    """Return the fall that each row must show."""
    policy = case.policy.drift
    return np.maximum(policy.drop, policy.sigmas * np.nan_to_num(case.evidence.error))


def _daily(case: DriftCase) -> BoolArray:
    """Return which of the last days, [rows, days], show half of the fall; days that are not needed
    count as such."""
    evidence = case.evidence
    days = np.arange(evidence.daily.shape[1])
    low = evidence.daily <= -case.policy.drift.drop / 2
    shown: BoolArray = low | (days >= evidence.needed[:, None])
    return shown


def _fall(case: DriftCase, rows: IntArray) -> DriftReport:
    evidence = case.evidence
    fallen = [
        FallenCohort(
            case.cohorts[row],
            float(case.shares[row]),
            float(evidence.seen[row]),
            float(evidence.expected[row]),
        )
        for row in rows
    ]
    policy = case.policy.retrain
    worth = retrain_worth(fallen, policy, case.speedup)
    against = list(objections(fallen, worth, case.ledger, case.now, policy))
    decision = DriftDecision.WAIT if worth.pays else DriftDecision.NOTHING
    if deployed := _deployed(case, rows):
        decision, against = DriftDecision.OFFER_ROLLBACK, [deployed]
    elif are_all(evidence, rows, case.policy.drift):
        decision = DriftDecision.ALERT
        against = [
            "All cohorts fell, if not in the same hours: look for what they share (engine, target, "
            "template, defaults) before training anything.",
            *against,
        ]
    elif others_fall(evidence, rows, case.policy.drift):
        decision = DriftDecision.WAIT
        against = [
            "The other cohorts fall since the same hours, so this may be a deployment; it is "
            "not a drafter's fault until they have recovered.",
            *against,
        ]
    elif not against:
        decision = DriftDecision.RETRAIN
    days = int(evidence.needed[rows].max())
    why = tuple(
        f"{_fall_of(case, row)}, {-evidence.change[row] / evidence.error[row]:.1f} standard "
        f"errors; each of the last {days} days shows it."
        for row in rows
    )
    if decision is DriftDecision.RETRAIN:
        why += (
            f"Training is expected to save {worth.hours_saved:.1f} accelerator hours in "
            f"{policy.horizon_days:g} days, worth {worth.gain:.2f}, and to cost {worth.cost:.2f}.",
        )
    report = _report(case, rows, decision, why, tuple(against))
    return replace(report, worth=worth, fallen=tuple(fallen))


def _deployed(case: DriftCase, rows: IntArray) -> str:
    """Say which known deployment lies where the fall began; "" where none does."""
    hours = case.policy.drift.step_hours
    for row in rows:
        since = float(case.evidence.since[row]) * HOUR
        if case.ledger.deployment_near(since, hours) is not None:
            return (
                f"{case.cohorts[row]} fell within {hours} hours of a deployment: rolling that "
                "back comes before any training."
            )
    return ""


def _watched(case: DriftCase, row: int) -> DriftReport:
    why = (f"{_fall_of(case, row)} ({-case.evidence.change[row] / case.evidence.error[row]:.1f} "
           "standard errors).",)  # fmt: skip
    rows = np.array([row])
    return _report(case, rows, DriftDecision.WAIT, why, tuple(_missing(case, row)))


def _missing(case: DriftCase, row: int) -> Iterator[str]:
    """Yield what a fall lacks that would make it count, in sentences."""
    evidence, policy = case.evidence, case.policy.drift
    needed, shown = int(evidence.needed[row]), _daily(case)[row]
    least = least_fall(case)[row]
    days = int(shown[:needed].sum())
    if evidence.change[row] > -least:
        yield f"A fall counts from {least:.1%} on, which is {_reason(case, row)}."
    if days < needed:
        week = ", a whole week since its weekends are not known yet" if needed > policy.days else ""
        yield f"{days} of the last {needed} days show it; all must{week}."
    elif evidence.median[row] > -policy.drop:
        yield f"The median day shows {-evidence.median[row]:.1%}; {policy.drop:.1%} are needed."
    if evidence.covered[row] < policy.covered:
        yield (
            f"These days have requests in {evidence.covered[row]:.0%} of the cohort's usual hours; "
            f"{policy.covered:.0%} are needed."
        )
    if evidence.requests[row] < policy.least_requests:
        yield f"{evidence.requests[row]:.0f} requests; {policy.least_requests} are needed."
    if not evidence.alarmed[row]:
        yield "Neither CUSUM nor ADWIN has fired."


def _reason(case: DriftCase, row: int) -> str:
    policy = case.policy.drift
    if policy.sigmas * case.evidence.error[row] > policy.drop:
        return f"{policy.sigmas:g} standard errors of so few requests"
    return "the policy's"


def _rise(case: DriftCase, rows: IntArray) -> DriftReport:
    why = tuple(
        f"AL of {case.cohorts[row]} is {case.evidence.change[row]:.1%} above its reference."
        for row in rows
    )
    against = ("Nothing is wrong with a rise; if it lasts, it becomes the reference.",)
    return _report(case, rows, DriftDecision.NOTHING, why, against)


def _fall_of(case: DriftCase, row: int) -> str:
    evidence = case.evidence
    return (
        f"AL of {case.cohorts[row]} is {evidence.seen[row]:.2f} where {evidence.expected[row]:.2f} "
        f"is usual at these hours, {-evidence.change[row]:.1%} less"
    )


def _report(
    case: DriftCase,
    rows: IntArray,
    decision: DriftDecision,
    why: tuple[str, ...],
    why_not: tuple[str, ...],
) -> DriftReport:
    evidence = case.evidence
    change = case.mean(evidence.change, rows)
    share = case.shares[rows] @ (evidence.seen[rows] - evidence.expected[rows])
    return DriftReport(
        kind=DriftKind.WITHIN,
        decision=decision,
        cohorts=case.labels(rows),
        start=float(case.now - 24 * HOUR * evidence.needed[rows].max()),
        end=case.now,
        change=change,
        error=case.mean(evidence.error, rows),
        before=case.mean(evidence.expected, rows),
        now=case.mean(evidence.seen, rows),
        within=float(share),
        requests=int(evidence.requests[rows].sum()),
        rounds=int(evidence.rounds[rows].sum()),
        why=why,
        why_not=why_not,
    )
