"""The hours that drift is judged by: a drafter's first weeks in a cohort, and the last two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.autospec.drift.cells import HourCells
from paceline.autospec.sums import BoolArray, FloatArray, IntArray, N

RECENT_DAYS = 15  # at the end of every row, today included: the same hours in all rows
MONDAY = 4  # day 4 since the epoch was a Monday


@dataclass(frozen=True, slots=True)
class HourWindow:
    """Hours of each row (a cohort), oldest first.

    sums      [columns, rows, days, 24]
    day       [rows, days], days since the epoch, UTC
    live      [rows, days, 24]: hours of the drafter that is judged, before `now`
    begin     [rows], the hour from which the drafter counts
    now       the hour behind the last one
    """

    sums: FloatArray
    day: IntArray
    live: BoolArray
    begin: IntArray
    now: int

    @property
    def weekday(self) -> IntArray:
        """0 for Monday, [rows, days]."""
        return (self.day - MONDAY) % 7

    @property
    def hours(self) -> IntArray:
        """Hours since the epoch, [rows, days, 24]."""
        hours: IntArray = self.day[..., None] * 24 + np.arange(24)
        return hours

    def begun(self, begin: IntArray) -> HourWindow:
        """Return the window of rows whose drafter counts from another hour on."""
        live = self.live & (self.hours >= begin[:, None, None])
        return HourWindow(self.sums, self.day, live, begin, self.now)


def hour_window(cells: HourCells, begin: IntArray, now: int, reference_days: int) -> HourWindow:
    """Cut the window of each cohort out of the cells. `begin` [cohorts] is the hour from which the
    cohort's drafter counts; a cohort begins with its first request at the earliest."""
    seen = cells.sums[N] > 0
    first = np.where(seen.any(1), cells.start + seen.argmax(1), now)
    begin = np.maximum(begin, first)
    last = (now - 1) // 24
    recent = np.broadcast_to(
        last - RECENT_DAYS + 1 + np.arange(RECENT_DAYS), (len(begin), RECENT_DAYS)
    )
    early = begin[:, None] // 24 + np.arange(reference_days)
    day = np.concatenate([early, recent], 1)
    hours = day[..., None] * 24 + np.arange(24)
    is_twice = np.zeros(day.shape, bool)
    is_twice[:, :reference_days] = early >= recent[:, :1]
    live = (hours >= begin[:, None, None]) & (hours < now) & ~is_twice[..., None]
    index = hours - cells.start
    inside = (index >= 0) & (index < cells.sums.shape[2]) & live
    rows = np.arange(len(begin))[:, None, None] * cells.sums.shape[2]
    place = np.where(inside, rows + index, 0)
    sums = cells.sums.reshape(len(cells.sums), -1).take(place, 1) * inside
    return HourWindow(sums, day, live, begin, now)
