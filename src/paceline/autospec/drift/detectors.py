"""ADWIN and CUSUM over the hourly residuals of each cohort."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.autospec.drift import cusum
from paceline.autospec.drift.adwin import strongest_cut
from paceline.autospec.drift.recent import RecentHours
from paceline.autospec.drift.season import Season, fit_season
from paceline.autospec.drift.window import HourWindow
from paceline.autospec.policy import DriftPolicy
from paceline.autospec.sums import BoolArray, FloatArray, IntArray, N, R, divide, residuals, squares

LEAST_BEFORE = 7  # days before a lasting change of level: of fewer, a cut picks the best ones
LEAST_BEHIND = 3


def reference_end(window: HourWindow, policy: DriftPolicy) -> tuple[HourWindow, IntArray]:
    """Return the window and the hour where the reference ends: before the days that are judged,
    and before a lasting fall, which must not become the norm.

    A lasting rise becomes the norm: the window returned then begins behind it.
    """
    judged = np.full(len(window.begin), window.now - policy.days * 24)
    cut, change = lasting_change(window, policy)
    risen = change >= policy.drop
    if risen.any():
        window = window.begun(np.where(risen, cut, window.begin))
        again, second = lasting_change(window, policy)
        cut, change = np.where(risen, again, cut), np.where(risen, second, change)
    return window, np.where(change <= -policy.drop, np.minimum(cut, judged), judged)


def lasting_change(window: HourWindow, policy: DriftPolicy) -> tuple[IntArray, FloatArray]:
    """Return the hour of the clearest change of level in each row, and its size relative to the
    level; 0 where ADWIN does not cut."""
    season = fit_season(
        window.sums, window.live, window.weekday, policy.usual_day_deviation, passes=1
    )
    group, change = _cut(window, season, policy, (LEAST_BEFORE, LEAST_BEHIND))
    hours = window.hours.reshape(len(group), -1)
    return hours[np.arange(len(group)), group], change


def has_fall(window: HourWindow, season: Season, policy: DriftPolicy) -> BoolArray:
    """Return whether ADWIN cuts the residuals of each row, with less behind the cut."""
    _, change = _cut(window, season, policy, (0, 0))
    fallen: BoolArray = change <= -policy.clears
    return fallen


def _cut(
    window: HourWindow, season: Season, policy: DriftPolicy, least_days: tuple[float, float]
) -> tuple[IntArray, FloatArray]:
    sums = window.sums * window.live
    sums = sums.reshape(*sums.shape[:2], -1)
    expected = season.expected(window.weekday).reshape(len(window.begin), -1)
    total = sums.sum(2)
    a_day = divide(total[N], season.days, 1.0)
    group, is_cut, step = strongest_cut(
        sums[N],
        np.nan_to_num(residuals(sums, expected)),
        np.nan_to_num(squares(sums, expected)),
        policy.adwin_delta,
        (np.maximum(least_days[0] * a_day, 1), np.maximum(least_days[1] * a_day, 1)),
    )
    change = divide(step, season.level * divide(total[R], total[N]), 0.0)
    return group, np.where(is_cut, np.nan_to_num(change), 0.0)


@dataclass(frozen=True, slots=True)
class CusumState:
    """CUSUM of each row: its highest value in the days that are judged, the threshold, and the hour
    in which it began to rise to that value."""

    peak: FloatArray
    limit: FloatArray
    since: IntArray

    @classmethod
    def of(
        cls,
        recent: RecentHours,
        learnt: BoolArray,
        season: Season,
        needed: IntArray,
        policy: DriftPolicy,
    ) -> CusumState:
        """Run CUSUM over recent hours, but for those that the reference was `learnt` from. The
        allowance is half the fall that counts."""
        allowance = policy.drop / 2
        scale = np.sqrt(np.maximum(season.variance, 1e-12))
        steps = -(recent.left + allowance * recent.normal) / scale[:, None]
        values = cusum.statistics(np.where(learnt, 0.0, np.nan_to_num(steps)))
        hours, now = recent.hours, recent.now
        judged = (hours >= now - 24 * needed[:, None]) & (hours < now)
        peak = np.where(judged, values, -1.0).argmax(1)
        rows = np.arange(len(values))
        requests, rounds = recent.sums[N], recent.sums[R]
        days = np.maximum((requests > 0).sum(1) / 24, 1 / 24)
        k = allowance * season.level * divide(rounds.sum(1), requests.sum(1)) / scale
        run_length = requests.sum(1) / days * policy.false_alarm_days
        is_zero = (values <= 0) & (np.arange(len(hours)) <= peak[:, None])
        began = np.where(is_zero.any(1), values.shape[1] - is_zero[:, ::-1].argmax(1), 0)
        return cls(
            values[rows, peak],
            cusum.threshold(np.nan_to_num(k), run_length),
            hours[np.minimum(began, len(hours) - 1)],
        )
