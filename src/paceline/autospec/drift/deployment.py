"""A step in all cohorts at once: a deployment changed the engine, the template or a default.

A drafter goes stale where traffic changes, in some cohorts and over days. What lowers all of them
within the same hours is not the traffic, and training would not undo it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.autospec.drift.evidence import DriftEvidence
from paceline.autospec.drift.season import TWO_WEEKS
from paceline.autospec.policy import DriftPolicy
from paceline.autospec.sums import BoolArray, FloatArray, IntArray, divide

LEAST_HOURS = 6  # behind a step
BESIDE = 48  # hours before a step that it is compared with
JUDGED = 72  # hours behind a step that count
COMMON_SIGMAS = 2.0
ABLE_SIGMAS = 3.0  # standard errors in the fall of a cohort with enough requests to show it
LEAST_LOG_ODDS = 8.0  # that a cohort has the common fall, against none
EXCLUDED_LOG_ODDS = -8.0  # of the same fall in the others, below which they have not fallen


@dataclass(frozen=True, slots=True)
class CommonStep:
    """A fall of several cohorts from one hour on: rows, and the change of each and of all."""

    hour: int
    rows: IntArray
    change: float
    changes: FloatArray


def common_step(evidence: DriftEvidence, policy: DriftPolicy) -> CommonStep | None:
    """Return the step that all cohorts with enough requests took at once; None without one."""
    alarmed = (evidence.cusum > evidence.limit) & evidence.ready
    if alarmed.sum() < 2:
        return None
    place = _place(evidence, np.flatnonzero(alarmed), policy)
    hours = evidence.hours[0]
    end = int(evidence.now[0])
    if end - hours[place] < LEAST_HOURS:
        return None
    behind = (hours >= hours[place]) & (hours < min(end, hours[place] + JUDGED))
    change, error = _change(evidence, behind)
    whole = float(evidence.left[:, behind].sum() / evidence.normal[:, behind].sum())
    # before weekends are known, they look like a step in all cohorts
    week_known = evidence.reference_days[alarmed].min() >= TWO_WEEKS
    least = policy.drop if week_known else 2 * policy.drop
    able = evidence.ready & (error * ABLE_SIGMAS <= max(-whole, least))
    odds = divide(whole * change - whole**2 / 2, error**2, 0.0)
    fallen = (odds >= LEAST_LOG_ODDS) & alarmed
    if able.sum() < 2 or not fallen[able].all() or whole > -least:
        return None
    if not _is_sharp(evidence, hours, int(hours[place]), whole, policy):
        return None
    rows = np.flatnonzero(able)
    return CommonStep(int(hours[place]), rows, whole, change[rows])


def are_all(evidence: DriftEvidence, rows: IntArray, policy: DriftPolicy) -> bool:
    """Return whether these are all of several cohorts that have requests enough to show a fall."""
    able = np.flatnonzero(evidence.ready & (evidence.error * ABLE_SIGMAS <= policy.drop))
    return len(able) > 1 and not len(np.setdiff1d(able, rows))


def others_fall(evidence: DriftEvidence, rows: IntArray, policy: DriftPolicy) -> bool:
    """Return whether the cohorts beside `rows` may have fallen as well, since the same hour or in
    the last day: unless that is clearly unlikely, a deployment is not excluded."""
    others = np.setdiff1d(np.flatnonzero(evidence.ready), rows)
    if not len(others):
        return False
    hours, end = evidence.hours[0], int(evidence.now[0])
    since = min(int(np.median(evidence.since[rows])), end - 24)
    for start, least in ((since, EXCLUDED_LOG_ODDS), (end - 24, 0.0)):
        span = (hours >= start) & (hours < end)
        normal = evidence.normal[others][:, span].sum()
        own = evidence.left[rows][:, span].sum() / evidence.normal[rows][:, span].sum()
        change = divide(evidence.left[others][:, span].sum(), normal, 0.0)
        noise = (evidence.variance[others] * evidence.counts[others][:, span].sum(1)).sum()
        day = policy.usual_day_deviation / np.sqrt(span.sum() / 24)
        error = np.hypot(divide(np.sqrt(noise), normal, np.inf), day)
        odds = (own * change - own**2 / 2) / error**2
        if odds > least and change <= -COMMON_SIGMAS * error:
            return True
    return False


def _place(evidence: DriftEvidence, rows: IntArray, policy: DriftPolicy) -> int:
    """Return the hour, as an index, since which a fall of `drop` in all rows is likeliest: the
    summed log-likelihood ratio of normal residuals."""
    left, normal = evidence.left[rows], evidence.normal[rows]
    scale = evidence.variance[rows, None]
    gain = policy.drop * evidence.level[rows, None] * (-left - policy.drop / 2 * normal) / scale
    tail = gain.sum(0)[::-1].cumsum()[::-1]
    is_past = evidence.hours[0] < evidence.now[0]
    return int(np.where(is_past, tail, -np.inf).argmax())


def _change(evidence: DriftEvidence, hours: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return each row's relative change in some hours, and its standard error."""
    normal = np.maximum(evidence.normal[:, hours].sum(1), 1e-9)
    change = evidence.left[:, hours].sum(1) / normal
    noise = np.sqrt(evidence.variance * evidence.counts[:, hours].sum(1)) / normal
    days = max(1.0, hours.sum() / 24)
    return change, np.hypot(noise, evidence.day / evidence.level / np.sqrt(days))


def _is_sharp(
    evidence: DriftEvidence, hours: IntArray, step: int, whole: float, policy: DriftPolicy
) -> bool:
    """Return whether the first hours behind a step show half of the fall, and those before less
    than that, as far as noise allows."""
    ready = evidence.ready
    first = (hours >= step) & (hours < min(step + policy.step_hours, int(evidence.now[0])))
    before = (hours >= step - BESIDE) & (hours < step - policy.step_hours / 2)
    changes = []
    for part in (first, before):
        normal = max(float(evidence.normal[ready][:, part].sum()), 1e-9)
        noise = (evidence.variance[ready] * evidence.counts[ready][:, part].sum(1)).sum()
        changes.append((evidence.left[ready][:, part].sum() / normal, np.sqrt(noise) / normal))
    (fall, noise), (earlier, earlier_noise) = changes
    return bool(
        fall <= whole / 2 + COMMON_SIGMAS * noise
        and earlier >= whole / 2 - COMMON_SIGMAS * earlier_noise
    )
