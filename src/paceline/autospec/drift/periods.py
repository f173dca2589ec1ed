"""Sums of all cohorts over the same hours: the last days, the weeks before, and the last hours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.autospec.drift.cells import HourCells
from paceline.autospec.drift.window import MONDAY
from paceline.autospec.policy import DriftPolicy
from paceline.autospec.sums import FloatArray, IntArray, R

USUAL_DAYS = 28
PLAIN = 3  # columns: requests, tokens, rounds


@dataclass(frozen=True, slots=True)
class DriftPeriods:
    """Sums by cohort up to the hour `now`.

    current   the last days that are judged, [columns, rows]
    usual     the weeks before them, [columns, rows]
    recent    the last hours, [columns, rows, hours]
    usual_rounds  rounds that these hours of the day had in the weeks before, [rows]
    start     first hour of `current`
    """

    now: int
    start: int
    current: FloatArray
    usual: FloatArray
    recent: FloatArray
    usual_rounds: FloatArray

    @property
    def recent_weekhours(self) -> IntArray:
        """The hours of the week, from Monday 0 h, of `recent`."""
        first = self.now - self.recent.shape[2]
        hours: IntArray = (first + np.arange(self.recent.shape[2]) - 24 * MONDAY) % 168
        return hours

    def take(self, rows: slice) -> DriftPeriods:
        """Return the sums of some cohorts."""
        return DriftPeriods(
            self.now,
            self.start,
            self.current[:, rows],
            self.usual[:, rows],
            self.recent[:, rows],
            self.usual_rounds[rows],
        )


def drift_periods(cells: HourCells, now: int, policy: DriftPolicy) -> DriftPeriods:
    """Sum the cells of each period."""
    start, width = now - 24 * policy.days, policy.recent_hours
    before = cells.between(start - 24 * USUAL_DAYS, start, PLAIN)
    by_day = cells.between(now - 24 * (USUAL_DAYS + 1), now - 24, PLAIN)[R]
    hours = by_day.reshape(len(by_day), USUAL_DAYS, 24)[:, :, 24 - width :]
    return DriftPeriods(
        now=now,
        start=start,
        current=cells.between(start, now, PLAIN).sum(2),
        usual=before.sum(2),
        recent=cells.between(now - width, now, PLAIN),
        usual_rounds=hours.sum((1, 2)),
    )
