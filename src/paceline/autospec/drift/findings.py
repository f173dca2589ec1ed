"""Findings that never lead to training: deployments, loops, mix, season, and nothing at all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paceline.autospec.drift.case import DriftCase
from paceline.autospec.drift.cells import HOUR
from paceline.autospec.drift.deployment import common_step
from paceline.autospec.drift.mix import decompose, explain_recent
from paceline.autospec.drift.periods import USUAL_DAYS
from paceline.autospec.drift.report import DriftDecision, DriftKind, DriftReport
from paceline.autospec.policy import DriftPolicy
from paceline.autospec.sums import BoolArray, IntArray, N, R, divide, ratio_of


def deployments(case: DriftCase) -> Iterator[DriftReport]:
    """Yield the step that all cohorts took at once, or the one that nobody has settled."""
    evidence, policy = case.evidence, case.policy.drift
    is_low = evidence.ready & (evidence.change <= -policy.clears)
    known = [case.ledger.open_finding(label) for label in case.cohorts]
    standing = np.flatnonzero(is_low & np.array([entry is not None for entry in known]))
    if len(standing):
        entry = known[standing[0]]
        assert entry is not None
        since = (case.now - entry.time) / (24 * HOUR)
        yield _deployment(
            case,
            standing,
            entry.time,
            case.mean(evidence.change, standing),
            f"The step of {since:.0f} days ago is not settled: AL is still "
            f"{-case.mean(evidence.change, standing):.1%} low.",
        )
    elif step := common_step(evidence, policy):
        falls = ", ".join(
            f"{case.cohorts[row]} {change:+.1%}"
            for row, change in zip(step.rows.tolist(), step.changes, strict=True)
        )
        yield _deployment(
            case,
            step.rows,
            step.hour * HOUR,
            step.change,
            f"All cohorts with enough requests fell within the same hours: {falls}.",
        )


def _deployment(
    case: DriftCase, rows: IntArray, start: float, change: float, why: str
) -> DriftReport:
    evidence = case.evidence
    return DriftReport(
        kind=DriftKind.DEPLOYMENT,
        decision=DriftDecision.OFFER_ROLLBACK,
        cohorts=case.labels(rows),
        start=start,
        end=case.now,
        change=change,
        error=case.mean(evidence.error, rows),
        before=case.mean(evidence.expected, rows),
        now=case.mean(evidence.seen, rows),
        within=float(case.shares[rows] @ (evidence.seen[rows] - evidence.expected[rows])),
        requests=int(evidence.requests[rows].sum()),
        rounds=int(evidence.rounds[rows].sum()),
        why=(why, "Engine, template, target and sampling defaults are the same for all cohorts."),
        why_not=(
            "No retrain: traffic does not change everywhere in the same hours, so a drafter "
            "trained anew would learn what the deployment broke.",
        ),
    )


def looping_rows(case: DriftCase) -> BoolArray:
    """Return the rows in which clearly more answers than usual loop, in the last 24 hours."""
    evidence = case.evidence
    rows: BoolArray = evidence.looping > evidence.usual_looping + case.policy.drift.looping
    return rows


def loops(case: DriftCase) -> Iterator[DriftReport]:
    """Yield the cohorts whose AL rises to γ + 1 because answers repeat themselves."""
    evidence = case.evidence
    rows = np.flatnonzero(looping_rows(case) & evidence.ready)
    if not len(rows):
        return
    why = tuple(
        f"{evidence.looping[row]:.0%} of the rounds of {label} are of answers whose "
        f"drafts are accepted whole ({evidence.usual_looping[row]:.0%} is usual): AL of the last "
        f"day is {evidence.last_day[row]:.2f} of at most {evidence.ceiling[row]:.1f}."
        for row, label in zip(rows, case.labels(rows), strict=True)
    )
    yield DriftReport(
        kind=DriftKind.REPETITION,
        decision=DriftDecision.ALERT,
        cohorts=case.labels(rows),
        start=case.now - 24 * HOUR,
        end=case.now,
        change=float(np.nanmean(evidence.last_day[rows] / evidence.level[rows] - 1)),
        before=case.mean(evidence.level, rows),
        now=case.mean(np.nan_to_num(evidence.last_day), rows),
        requests=int(evidence.requests[rows].sum()),
        rounds=int(evidence.rounds[rows].sum()),
        why=why,
        why_not=(
            "No retrain: a drafter that guesses a loop is not better. Look at temperature, "
            "penalties, stop texts and the template.",
        ),
    )


def mix_change(case: DriftCase) -> Iterator[DriftReport]:
    """Yield the change of the total AL by the shares of cohorts alone."""
    periods, policy = case.periods, case.policy.drift
    usual, current = periods.usual, periods.current
    if not usual[R].sum() or not current[R].sum():
        return
    parts = decompose(usual[R], ratio_of(usual), current[R], ratio_of(current))
    mix = float(parts.mix.sum())
    if abs(mix) < policy.mix * parts.before:
        return
    before = divide(usual[R], usual[R].sum(), 0.0)
    moved = np.argsort(-np.abs(case.shares - before))[:2]
    named = zip(moved, case.labels(moved), strict=True)
    large = case.policy.regional.share
    grown = np.flatnonzero((case.shares >= large) & (before < large / 2))
    shares = ", ".join(
        f"{label} from {before[row]:.0%} to {case.shares[row]:.0%}" for row, label in named
    )
    within = float(parts.within.sum())
    yield DriftReport(
        kind=DriftKind.MIX,
        decision=DriftDecision.PROPOSE_ROUTES,
        cohorts=case.labels(moved),
        start=periods.start * HOUR,
        end=case.now,
        change=parts.change / parts.before,
        before=parts.before,
        now=parts.now,
        mix=mix,
        within=within,
        requests=int(current[N].sum()),
        rounds=int(current[R].sum()),
        grown=case.labels(grown),
        why=(
            f"The total AL went from {parts.before:.2f} to {parts.now:.2f}; the shares of cohorts "
            f"alone account for {mix:+.2f}, changes within cohorts for {within:+.2f}.",
            f"Shares of rounds: {shares}.",
        ),
        why_not=(
            "No retrain for this: each cohort is drafted for as before. Another drafter for the "
            "cohorts that grew may pay; see the regional test.",
        ),
    )


def season_move(case: DriftCase) -> Iterator[DriftReport]:
    """Yield the move of the last hours that the hour of the week explains."""
    periods, policy, evidence = case.periods, case.policy.drift, case.evidence
    usual = periods.usual.sum(1)
    recent = periods.recent.sum(2)
    if not usual[R] or not recent[R].sum() or not periods.usual_rounds.sum():
        return
    if not evidence.ready.any():  # no hour is known to be usual
        return
    rounds = periods.recent[R]
    norms = evidence.by_hour[:, periods.recent_weekhours]
    weights = np.where(rounds.sum(1, keepdims=True) > 0, rounds, 1.0)
    expected = (norms * weights).sum(1) / weights.sum(1)
    mean = float(ratio_of(usual))
    parts = explain_recent(mean, periods.usual_rounds, expected, recent[R], ratio_of(recent))
    move = parts.now - mean
    if abs(move) < policy.drop * mean or abs(parts.season) < abs(move) / 2:
        return
    hours = periods.recent.shape[2]
    yield DriftReport(
        kind=DriftKind.SEASON,
        decision=DriftDecision.NOTHING,
        cohorts=(),
        start=case.now - hours * HOUR,
        end=case.now,
        change=move / mean,
        before=mean,
        now=parts.now,
        mix=parts.mix,
        season=parts.season,
        within=parts.within,
        requests=int(recent[N].sum()),
        rounds=int(recent[R].sum()),
        why=(
            f"AL of the last {hours} hours is {parts.now:.2f}, and the mean of {USUAL_DAYS} days "
            f"{mean:.2f}. What these hours always differ by accounts for {parts.season:+.2f}, "
            f"unusual shares for {parts.mix:+.2f}, unusual acceptance for {parts.within:+.2f}.",
        ),
        why_not=("No retrain: it passes with the hour.",),
    )


def learning(case: DriftCase) -> Iterator[DriftReport]:
    """Yield the cohorts whose reference is too short to judge by."""
    evidence, policy = case.evidence, case.policy.drift
    rows = np.flatnonzero(~evidence.ready & (case.periods.current[R] > 0))
    if not len(rows):
        return
    days = ", ".join(
        f"{label} {evidence.reference_days[row]}"
        for row, label in zip(rows, case.labels(rows), strict=True)
    )
    yield DriftReport(
        kind=DriftKind.LEARNING,
        decision=DriftDecision.WAIT,
        cohorts=case.labels(rows),
        start=float(evidence.begin[rows].min()) * HOUR,
        end=case.now,
        why=(f"Days of reference: {days}; {policy.least_reference_days} are needed.",),
        why_not=(f"Nothing is judged before that, nor the {policy.days} days behind it.",),
    )


def unseen(now: float, policy: DriftPolicy) -> DriftReport:
    """Return the finding that there was no request at all."""
    return DriftReport(
        kind=DriftKind.STEADY,
        decision=DriftDecision.NOTHING,
        cohorts=(),
        start=now - 24 * HOUR * policy.days,
        end=now,
        why=("No drafted request was seen.",),
        why_not=("No retrain: nothing has changed.",),
    )


def steady(case: DriftCase) -> DriftReport:
    """Return the finding that there is none."""
    evidence = case.evidence
    rows = np.flatnonzero(evidence.ready)
    widest = float(np.abs(evidence.change[rows]).max()) if len(rows) else 0.0
    current = case.periods.current.sum(1)
    return DriftReport(
        kind=DriftKind.STEADY,
        decision=DriftDecision.NOTHING,
        cohorts=(),
        start=case.periods.start * HOUR,
        end=case.now,
        now=float(np.nan_to_num(ratio_of(current))),
        requests=int(current[N]),
        rounds=int(current[R]),
        why=(
            f"No cohort's AL is further than {widest:.1%} from what its hours usually have."
            if len(rows)
            else "No drafted request was seen in the last days.",
        ),
        why_not=("No retrain: nothing has changed.",),
    )
