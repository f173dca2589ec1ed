"""What the hours of each cohort say, as numbers: reference, residuals, detectors, looping.

Everything here is computed from hourly sums for all cohorts at once; what the numbers mean is
`classify`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from paceline.autospec.drift.cells import CEILING, LOOPING, HourCells
from paceline.autospec.drift.detectors import CusumState, has_fall, reference_end
from paceline.autospec.drift.recent import BLOCKS, JudgedDays, RecentHours
from paceline.autospec.drift.season import Season, fit_season
from paceline.autospec.drift.window import RECENT_DAYS, HourWindow, hour_window
from paceline.autospec.policy import DriftPolicy
from paceline.autospec.sums import BoolArray, FloatArray, IntArray, N, R, divide, ratio_of


@dataclass(frozen=True, slots=True)
class DriftEvidence:
    """Numbers of each row (a cohort), [rows] unless said otherwise.

    now           the hour behind the last one
    begin         hour from which the drafter counts
    reference_days  of the reference; `ready` where they are enough
    level         AL of the reference
    needed        days that must show a fall: the fields up to `covered` are about these last days
    expected      AL that is usual in their hours; `seen` is what it was
    change        seen ÷ expected − 1 and its standard error; `median` is that of the median day
    daily         the same of each day, latest first, [rows, BLOCKS]
    requests, rounds  in these days; `covered` is their share of the usual hours
    cusum, limit  CUSUM's highest value in these days and its threshold
    cut           whether ADWIN cuts the residuals, with less behind the cut
    since         hour in which CUSUM began to rise
    looping, usual_looping  share of rounds whose requests loop: in the last 24 hours, and usually
    ceiling       mean of the largest possible AL (γ + 1) in the last 24 hours; `last_day` is the AL
    hours, left, normal, counts  recent hours, as in RecentHours; `counts` are requests
    variance, day  of a request's residual t − AL·r; standard deviation of a day's AL
    by_hour       expected AL by hour of the week, [rows, 168], Monday first
    """

    now: IntArray
    begin: IntArray
    reference_days: IntArray
    ready: BoolArray
    level: FloatArray
    needed: IntArray
    expected: FloatArray
    seen: FloatArray
    change: FloatArray
    error: FloatArray
    median: FloatArray
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
    """Compute the evidence of all cohorts at the hour `now`. `begin` [cohorts] are the hours from
    which their drafters count."""
    window = hour_window(cells, begin, now, policy.reference_days)
    usual_looping, quiet = _without_loops(window, policy)
    quiet, end = reference_end(quiet, policy)
    in_reference = (
        quiet.live
        & (quiet.hours < end[:, None, None])
        & (quiet.day - quiet.begin[:, None] // 24 < policy.reference_days)[..., None]
    )
    season = fit_season(quiet.sums, in_reference, quiet.weekday, policy.usual_day_deviation)
    recent = RecentHours.of(window, season)
    needed = np.where(season.days >= policy.week_days, policy.days, BLOCKS)
    days = JudgedDays.of(recent, needed, _usual_hours(quiet, in_reference))
    learnt = in_reference[:, -RECENT_DAYS:].reshape(recent.left.shape)
    state = CusumState.of(recent, learnt, season, needed, policy)
    error = _error(days, season, needed)
    last = recent.last_day
    rows = len(begin)
    return DriftEvidence(
        now=np.full(rows, now),
        begin=quiet.begin,
        reference_days=season.days,
        ready=(season.days >= policy.least_reference_days) & np.isfinite(error),
        level=season.level,
        needed=needed,
        expected=days.expected,
        seen=days.seen,
        change=days.change,
        error=error,
        median=days.median,
        daily=days.daily,
        requests=days.requests,
        rounds=days.rounds,
        covered=days.covered,
        cusum=state.peak,
        limit=state.limit,
        cut=has_fall(quiet, season, policy),
        since=state.since,
        looping=divide(last[LOOPING], last[R], 0.0),
        usual_looping=usual_looping,
        ceiling=divide(last[CEILING], last[R]),
        last_day=ratio_of(last),
        hours=np.broadcast_to(recent.hours, (rows, len(recent.hours))),
        left=recent.left,
        normal=recent.normal,
        counts=recent.sums[N],
        variance=season.variance,
        day=season.day,
        by_hour=season.by_hour.reshape(rows, -1),
    )


def _without_loops(window: HourWindow, policy: DriftPolicy) -> tuple[FloatArray, HourWindow]:
    """Return the share of rounds that usually loop, [rows], and the window without days that have
    clearly more of them: their AL says nothing about a drafter."""
    rounds, looping = ((window.sums[c] * window.live).sum(2) for c in (R, LOOPING))
    share = np.sort(divide(looping, rounds, np.inf), 1)  # days without requests come last
    days = (rounds > 0).sum(1)
    median = share[np.arange(len(share)), np.maximum(days - 1, 0) // 2]
    usual = np.where(days > 0, median, 0.0)
    calm = divide(looping, rounds, 0.0) <= usual[:, None] + policy.looping
    live = window.live & calm[..., None]
    return usual, HourWindow(window.sums, window.day, live, window.begin, window.now)


def _usual_hours(window: HourWindow, in_reference: BoolArray) -> BoolArray:
    """Return the hours of the day, [rows, 24], that usually have requests."""
    seen = (in_reference & (window.sums[N] > 0)).sum(1)
    usual: BoolArray = seen * 2 >= np.maximum(in_reference.sum(1), 1)
    return usual


def _error(days: JudgedDays, season: Season, needed: IntArray) -> FloatArray:
    """Return the standard error of the change: of the requests, the days, the reference's level,
    and of its weekends where there are more or fewer than in the reference."""
    requests = divide(season.variance * days.requests, days.rounds**2)
    unlike = season.weekend_error * (days.weekends - season.weekends)
    whole = requests + season.day**2 / needed + season.error**2 + unlike**2
    return divide(np.sqrt(whole), days.expected)
