"""What the hours of each cohort say, as numbers: reference, residuals, detectors, looping.

Everything here is computed from hourly sums for all cohorts at once; what the numbers mean is
`classify`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from paceline.autospec.drift import cusum
from paceline.autospec.drift.adwin import strongest_cut
from paceline.autospec.drift.cells import CEILING, LOOPING, HourCells
from paceline.autospec.drift.season import SATURDAY, Season, fit_season
from paceline.autospec.drift.window import MONDAY, RECENT_DAYS, HourWindow, hour_window
from paceline.autospec.policy import DriftPolicy
from paceline.autospec.sums import (
    N, R, T, BoolArray, FloatArray, IntArray, divide, ratio_of, residuals, squares,
)  # fmt: skip

BLOCKS = 7  # days of 24 hours up to now that are judged one by one
LEAST_BEFORE = 7  # days before a lasting change of level: of fewer, a cut picks the best ones
LEAST_BEHIND = 3


@dataclass(frozen=True, slots=True)
class DriftEvidence:
    """Numbers of each row (a cohort), [rows] unless said otherwise.

    now           the hour behind the last one
    begin         hour from which the drafter counts
    reference_days  of the reference; `ready` where they are enough, `needed` days must show a fall
    level         AL of the reference; `expected` in the last `needed` days, `seen` what it was
    change        seen ÷ expected − 1; `error` its standard error
    daily         the same of each of the last BLOCKS days, latest first, [rows, BLOCKS]
    requests, rounds  of the last `needed` days; `covered` is their share of usual hours
    cusum, limit  CUSUM's highest value in these days and its threshold
    cut           whether ADWIN cuts the residuals, with less behind the cut
    since         hour in which CUSUM began to rise
    looping, usual_looping  share of rounds whose requests loop: in the last 24 hours, and usually
    ceiling       mean of the largest possible AL (γ + 1), in the last 24 hours
    last_day      AL of the last 24 hours
    hours         of the last two weeks, [hours]; residual, expectation and counts in them:
    left, normal, counts  Σ(t − AL·r), ΣAL·r, requests: [rows, hours]
    variance, day  of a request's residual; standard deviation of a day's AL
    by_hour       expected AL by hour of the week, [rows, 168], Monday first
    """

    now: IntArray
    begin: IntArray
    reference_days: IntArray
    ready: BoolArray
    needed: IntArray
    level: FloatArray
    expected: FloatArray
    seen: FloatArray
    change: FloatArray
    error: FloatArray
    daily: FloatArray
    requests: FloatArray
    rounds: FloatArray
    covered: FloatArray
    cusum: FloatArray
    limit: FloatArray
    cut: BoolArray
    since: IntArray
    looping: FloatArray
    usual_looping: FloatArray
    ceiling: FloatArray
    last_day: FloatArray
    hours: IntArray
    left: FloatArray
    normal: FloatArray
    counts: FloatArray
    variance: FloatArray
    day: FloatArray
    by_hour: FloatArray

    def take(self, rows: slice) -> Self:
        """Return the evidence of some rows."""
        return type(self)(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @property
    def alarmed(self) -> BoolArray:
        """Whether CUSUM or ADWIN fired."""
        return (self.cusum > self.limit) | self.cut


def gather(cells: HourCells, begin: IntArray, now: int, policy: DriftPolicy) -> DriftEvidence:
    """Compute the evidence of all cohorts at the hour `now`."""
    window = hour_window(cells, begin, now, policy.reference_days)
    loops = _Loops.of(window, policy)
    quiet = loops.without(window)
    quiet, end = _reference_end(quiet, policy)
    in_reference = (
        quiet.live
        & (quiet.hours < end[:, None, None])
        & (quiet.day - quiet.begin[:, None] // 24 < policy.reference_days)[..., None]
    )
    season = fit_season(quiet.sums, in_reference, quiet.weekday, policy.usual_day_deviation)
    return _evidence(window, quiet, loops, season, in_reference, policy)


@dataclass(frozen=True, slots=True)
class _Loops:
    """The share of rounds, by day, whose requests loop."""

    days: BoolArray  # [rows, days]: days with clearly more of it than usual
    usual: FloatArray

    @classmethod
    def of(cls, window: HourWindow, policy: DriftPolicy) -> Self:
        rounds, looping = ((window.sums[c] * window.live).sum(2) for c in (R, LOOPING))
        share = divide(looping, rounds)
        has_any = ~np.isnan(share).all(1)
        usual = np.zeros(len(share))
        usual[has_any] = np.nanmedian(share[has_any], 1)
        return cls(np.nan_to_num(share) > usual[:, None] + policy.looping, usual)

    def without(self, window: HourWindow) -> HourWindow:
        live = window.live & ~self.days[..., None]
        return HourWindow(window.sums, window.day, live, window.begin, window.now)


def _reference_end(window: HourWindow, policy: DriftPolicy) -> tuple[HourWindow, IntArray]:
    """Return the window and the hour where the reference ends: before the days that are judged,
    and before a lasting fall, which must not become the norm.

    A lasting rise becomes the norm: the window returned then begins behind it.
    """
    judged = np.full(len(window.begin), window.now - policy.days * 24)
    cut, change = _lasting_change(window, policy)
    risen = change >= policy.drop
    if risen.any():
        window = window.begun(np.where(risen, cut, window.begin))
        again, second = _lasting_change(window, policy)
        cut, change = np.where(risen, again, cut), np.where(risen, second, change)
    return window, np.where(change <= -policy.drop, np.minimum(cut, judged), judged)


def _lasting_change(window: HourWindow, policy: DriftPolicy) -> tuple[IntArray, FloatArray]:
    """Return the hour of the clearest change of level in each row, and its size relative to the
    level; 0 where ADWIN does not cut."""
    season = fit_season(window.sums, window.live, window.weekday, policy.usual_day_deviation)
    sums, expected = _flat(window, season)
    total = sums.sum(2)
    a_day = divide(total[N], season.days, 1.0)
    group, is_cut, step = strongest_cut(
        sums[N],
        residuals(sums, expected),
        squares(sums, expected),
        policy.adwin_delta,
        (LEAST_BEFORE * a_day, LEAST_BEHIND * a_day),
    )
    hours = window.hours.reshape(len(group), -1)
    rounds = divide(total[R], total[N])
    change = np.where(is_cut, np.nan_to_num(step / (season.level * rounds)), 0.0)
    return hours[np.arange(len(group)), group], change


def _evidence(
    window: HourWindow,
    quiet: HourWindow,
    loops: _Loops,
    season: Season,
    in_reference: BoolArray,
    policy: DriftPolicy,
) -> DriftEvidence:
    rows = len(window.begin)
    norm = season.expected(quiet.weekday)
    usual = _usual_hours(window, in_reference)
    last = window.sums[:, :, -RECENT_DAYS:] * window.live[:, -RECENT_DAYS:]
    last = last.reshape(len(last), rows, -1)
    expected = norm[:, -RECENT_DAYS:].reshape(rows, -1)
    hours = quiet.hours[0, -RECENT_DAYS:].reshape(-1)
    left = np.nan_to_num(residuals(last, expected))
    normal = np.nan_to_num(expected * last[R])

    needed = np.where(season.days >= policy.week_days, policy.days, BLOCKS)
    block = (window.now - 1 - hours) // 24
    in_block = ((block[:, None] == np.arange(BLOCKS)) & (hours < window.now)[:, None]).astype(float)
    judged = np.arange(BLOCKS) < needed[:, None]
    blocks = [values @ in_block for values in (left, normal, last[N], last[R], last[T])]
    daily = divide(blocks[0], blocks[1])
    short, norms, requests, rounds, tokens = (
        np.where(judged, values, 0.0).sum(1) for values in blocks
    )
    level_now = divide(norms, rounds)
    noise = divide(season.variance * requests, rounds**2)
    is_weekend = (hours // 24 - MONDAY) % 7 >= SATURDAY
    weekends = np.where(judged, (last[R] * is_weekend) @ in_block, 0.0).sum(1)
    unlike = season.weekend_error * (divide(weekends, rounds) - season.weekends)
    error = np.sqrt(noise + season.day**2 / needed + season.error**2 + unlike**2) / level_now
    hour_seen = (last[N] > 0) & usual[:, hours % 24]
    covered = divide(
        np.where(judged, hour_seen @ in_block, 0.0).sum(1), needed * usual.sum(1), 0.0
    )
    recent = last[:, :, block == 0].sum(2)
    statistic, limit, since = _cusum(last, left, normal, hours, in_reference, season, policy, needed, window.now)
    return DriftEvidence(
        now=np.full(rows, window.now),
        begin=quiet.begin,
        reference_days=season.days,
        ready=(season.days >= policy.least_reference_days) & np.isfinite(error),
        needed=needed,
        level=season.level,
        expected=level_now,
        seen=divide(tokens, rounds),
        change=np.nan_to_num(divide(short, norms)),
        error=error,
        daily=daily,
        requests=requests,
        rounds=rounds,
        covered=covered,
        cusum=statistic,
        limit=limit,
        cut=_is_cut(quiet, season, policy),
        since=since,
        looping=divide(recent[LOOPING], recent[R], 0.0),
        usual_looping=loops.usual,
        ceiling=divide(recent[CEILING], recent[R]),
        last_day=ratio_of(recent),
        hours=np.broadcast_to(hours, (rows, len(hours))),
        left=left,
        normal=normal,
        counts=last[N],
        variance=season.variance,
        day=season.day,
        by_hour=season.by_hour.reshape(rows, -1),
    )


def _usual_hours(window: HourWindow, in_reference: BoolArray) -> BoolArray:
    """Return the hours of the day, [rows, 24], that usually have requests."""
    seen = (in_reference & (window.sums[N] > 0)).sum(1)
    usual: BoolArray = seen * 2 >= np.maximum(in_reference.sum(1), 1)
    return usual


def _cusum(
    last: FloatArray,
    left: FloatArray,
    normal: FloatArray,
    hours: IntArray,
    in_reference: BoolArray,
    season: Season,
    policy: DriftPolicy,
    needed: IntArray,
    now: int,
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return CUSUM's highest value in the days that are judged, its threshold, and the hour in
    which it began to rise to that value. The allowance is half the fall that counts."""
    learnt = in_reference[:, -RECENT_DAYS:].reshape(left.shape)
    scale = np.sqrt(np.maximum(season.variance, 1e-12))
    allowance = policy.drop / 2
    steps = np.where(learnt, 0.0, -(left + allowance * normal) / scale[:, None])
    values = cusum.statistics(np.nan_to_num(steps))
    judged = (hours >= now - 24 * needed[:, None]) & (hours < now)
    peak = np.where(judged, values, -1.0).argmax(1)
    rows = np.arange(len(values))
    requests, rounds = last[N].sum(1), last[R].sum(1)
    seen_days = np.maximum((last[N] > 0).sum(1) / 24, 1 / 24)
    k = allowance * season.level * divide(rounds, requests) / scale
    limit = cusum.threshold(np.nan_to_num(k), requests / seen_days * policy.false_alarm_days)
    is_zero = (values <= 0) & (np.arange(len(hours)) <= peak[:, None])
    began = np.where(is_zero.any(1), values.shape[1] - is_zero[:, ::-1].argmax(1), 0)
    return values[rows, peak], limit, hours[np.minimum(began, len(hours) - 1)]


def _is_cut(window: HourWindow, season: Season, policy: DriftPolicy) -> BoolArray:
    """Return whether ADWIN cuts the residuals of each row, with less behind the cut."""
    sums, expected = _flat(window, season)
    scale = np.sqrt(np.maximum(season.variance, 1e-12))[:, None]
    total = sums.sum(2)
    _, is_cut, step = strongest_cut(
        sums[N],
        np.nan_to_num(residuals(sums, expected) / scale),
        np.nan_to_num(squares(sums, expected) / scale**2),
        policy.adwin_delta,
        (np.ones(len(scale)), np.ones(len(scale))),
    )
    size = np.nan_to_num(step * scale[:, 0] / (season.level * divide(total[R], total[N])))
    found: BoolArray = is_cut & (size <= -policy.clears)
    return found


def _flat(window: HourWindow, season: Season) -> tuple[FloatArray, FloatArray]:
    """Return the sums of live hours [columns, rows, hours], and the AL expected in them."""
    sums = window.sums * window.live
    expected = season.expected(window.weekday)
    return sums.reshape(*sums.shape[:2], -1), expected.reshape(len(expected), -1)
