"""The last two weeks, hour by hour, and the last days in blocks of 24 hours up to now."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.autospec.drift.season import SATURDAY, Season
from paceline.autospec.drift.window import MONDAY, RECENT_DAYS, HourWindow
from paceline.autospec.sums import BoolArray, FloatArray, IntArray, N, R, T, divide, residuals

BLOCKS = 7  # days of 24 hours up to now that are judged one by one


@dataclass(frozen=True, slots=True)
class RecentHours:
    """Recent hours: the same ones for all rows (cohorts).

    hours     since the epoch, [hours]; those from `now` on are empty
    sums      [columns, rows, hours]
    left, normal  Σ(t − AL·r) and ΣAL·r with the AL that each hour usually has, [rows, hours]
    """

    now: int
    hours: IntArray
    sums: FloatArray
    left: FloatArray
    normal: FloatArray

    @classmethod
    def of(cls, window: HourWindow, season: Season) -> RecentHours:
        rows = len(window.begin)
        sums = window.sums[:, :, -RECENT_DAYS:] * window.live[:, -RECENT_DAYS:]
        sums = sums.reshape(len(sums), rows, -1)
        expected = season.expected(window.weekday[:, -RECENT_DAYS:]).reshape(rows, -1)
        return cls(
            now=window.now,
            hours=window.hours[0, -RECENT_DAYS:].reshape(-1),
            sums=sums,
            left=np.nan_to_num(residuals(sums, expected)),
            normal=np.nan_to_num(expected * sums[R]),
        )

    @property
    def last_day(self) -> FloatArray:
        """The sums of the last 24 hours, [columns, rows]."""
        is_in = (self.hours >= self.now - 24) & (self.hours < self.now)
        sums: FloatArray = self.sums[:, :, is_in].sum(2)
        return sums


@dataclass(frozen=True, slots=True)
class JudgedDays:
    """The last days of each row, latest first: as many as a fall must last.

    daily      change of each of the last BLOCKS days relative to what is usual, [rows, BLOCKS]
    median     of those that are judged; `change` is that of all of them together
    expected, seen  AL of the days that are judged
    covered    the share of the cohort's usual hours that have requests
    weekends   the share of rounds that lie on weekends
    """

    daily: FloatArray
    median: FloatArray
    change: FloatArray
    expected: FloatArray
    seen: FloatArray
    requests: FloatArray
    rounds: FloatArray
    covered: FloatArray
    weekends: FloatArray

    @classmethod
    def of(cls, recent: RecentHours, needed: IntArray, usual_hours: BoolArray) -> JudgedDays:
        """Sum the last `needed` [rows] days. `usual_hours` are [rows, 24]."""
        hours = recent.hours
        block = (recent.now - 1 - hours) // 24
        in_block = (block[:, None] == np.arange(BLOCKS)) & (hours < recent.now)[:, None]
        in_block = in_block.astype(float)
        judged = np.arange(BLOCKS) < needed[:, None]

        def judge(values: FloatArray) -> FloatArray:
            total: FloatArray = np.where(judged, values @ in_block, 0.0).sum(1)
            return total

        daily = divide(recent.left @ in_block, recent.normal @ in_block)
        ordered = np.sort(np.where(judged, np.nan_to_num(daily), np.inf), 1)
        rounds, normal = judge(recent.sums[R]), judge(recent.normal)
        seen_hours = (recent.sums[N] > 0) & usual_hours[:, hours % 24]
        is_weekend = (hours // 24 - MONDAY) % 7 >= SATURDAY
        return cls(
            daily=daily,
            median=ordered[np.arange(len(needed)), (needed - 1) // 2],
            change=divide(judge(recent.left), normal, 0.0),
            expected=divide(normal, rounds),
            seen=divide(judge(recent.sums[T]), rounds),
            requests=judge(recent.sums[N]),
            rounds=rounds,
            covered=divide(judge(seen_hours.astype(float)), needed * usual_hours.sum(1), 0.0),
            weekends=divide(judge(recent.sums[R] * is_weekend), rounds, 0.0),
        )
