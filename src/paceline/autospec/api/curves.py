"""The acceptance length of cohorts over time, beside what is usual at these hours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.autospec.api.answers import By, CohortCurve, CohortDrift
from paceline.autospec.api.traced import KEPT_MINUTES, MINUTE, TracedTraffic
from paceline.autospec.drift import HourCells, Ledger
from paceline.autospec.drift.cells import HOUR
from paceline.autospec.drift.evidence import DriftEvidence, gather
from paceline.autospec.drift.window import MONDAY
from paceline.autospec.policy import DriftPolicy
from paceline.autospec.store import ALL
from paceline.autospec.sums import FloatArray, IntArray, N, R, divide, ratio_of, squares

WEEK = 7 * 24
Z95 = 1.96
PLACES = 4


@dataclass(frozen=True, slots=True)
class CurveSpan:
    """How much of the past a curve shows: so many cells of `unit` seconds, `width` in a point."""

    unit: float
    width: int
    cells: int

    @property
    def seconds(self) -> float:
        return self.unit * self.cells


SPANS: Mapping[By, CurveSpan] = {
    "minute": CurveSpan(MINUTE, 1, KEPT_MINUTES),
    "hour": CurveSpan(HOUR, 1, WEEK),
    "day": CurveSpan(HOUR, 24, 60 * 24),
}


@dataclass(frozen=True, slots=True)
class CohortCurves:
    """The curves of cohorts.

    hours     their sums by hour, until the hour `now`
    cells     the sums that the curves show, until the cell `end`
    evidence  the drift of `cohorts`, its rows
    """

    hours: HourCells
    now: int
    span: CurveSpan
    cells: HourCells
    end: int
    cohorts: Mapping[str, int]
    evidence: DriftEvidence | None

    @classmethod
    def of(
        cls,
        traffic: TracedTraffic,
        shown: TracedTraffic,
        without: frozenset[str],
        ledger: Ledger,
        span: CurveSpan,
        policy: DriftPolicy,
    ) -> CohortCurves:
        """Make the curves of all cohorts, without the requests of some drafters: those of the
        traffic that is `shown`, beside what the traffic by hour says is usual."""
        over = traffic.over.by_cohort(without)
        evidence = None
        if over.cohorts:
            begins = ledger.begins(over.cohorts)
            evidence = gather(over, begins, traffic.over.until, policy)
        rows = {cohort: row for row, cohort in enumerate(over.cohorts)}
        hours, cells = traffic.whole.by_cohort(without), shown.whole.by_cohort(without)
        return cls(hours, traffic.whole.until, span, cells, shown.whole.until, rows, evidence)

    @property
    def sizes(self) -> dict[str, tuple[int, float]]:
        """Requests and rounds of each cohort in the last week."""
        week = self.hours.between(self.now - WEEK, self.now)
        requests, rounds = week[N].sum(1), week[R].sum(1)
        return {
            cohort: (int(requests[row]), float(rounds[row]))
            for row, cohort in enumerate(self.hours.cohorts)
        }

    def curve(self, cohort: str) -> CohortCurve | None:
        """Return the curve of a cohort, of all requests together with "". None where no request of
        it was drafted for."""
        width, unit = self.span.width, self.span.unit
        end = -(-self.end // width) * width  # days are those of UTC
        first = end - self.span.cells
        sums = self._sums(cohort, first, end)
        if sums is None or not sums[R].any():
            return None
        hours = (np.arange(first, end) * unit // HOUR).astype(np.int64)
        expected = self._expected(cohort, hours)
        usual = divide((expected * sums[R]).reshape(-1, width).sum(1), _binned(sums, width)[R])
        points = _binned(sums, width)
        value = ratio_of(points)
        error = _error(points, value)
        shown = np.flatnonzero(points[R] > 0)
        return {
            "time": [(first + width * point) * unit for point in shown.tolist()],
            "al": [_number(number) or 1.0 for number in value[shown]],
            "low": [_number(number) for number in np.maximum(1.0, value - Z95 * error)[shown]],
            "high": [_number(number) for number in (value + Z95 * error)[shown]],
            "expected": [_number(number) for number in usual[shown]],
            "requests": [int(count) for count in points[N][shown]],
        }

    def drift(self, cohort: str) -> CohortDrift | None:
        """Return how the last days of a cohort compare with its season; None where nothing is known
        of it."""
        row, evidence = self.cohorts.get(cohort), self.evidence
        if row is None or evidence is None:
            return None
        ready = bool(evidence.ready[row])
        return {
            "by_loop": False,
            "reference_days": int(evidence.reference_days[row]),
            "days": float(evidence.needed[row]),
            "expected": _number(evidence.expected[row]) if ready else None,
            "seen": _number(evidence.seen[row]),
            "change": _number(evidence.change[row]) if ready else None,
            "error": _number(evidence.error[row]) if ready else None,
        }

    def _sums(self, cohort: str, first: int, end: int) -> FloatArray | None:
        sums = self.cells.between(first, end)
        if cohort == ALL:
            total: FloatArray = sums.sum(1)
            return total
        if cohort not in self.cells.cohorts:
            return None
        return sums[:, self.cells.cohorts.index(cohort)]

    def _expected(self, cohort: str, hours: IntArray) -> FloatArray:
        """Return the AL that is usual in these hours; NaN where the reference is too short."""
        row, evidence = self.cohorts.get(cohort), self.evidence
        if row is None or evidence is None or not evidence.ready[row]:
            return np.full(len(hours), np.nan)
        expected: FloatArray = evidence.by_hour[row][(hours - 24 * MONDAY) % WEEK]
        return expected


def al_of(sums: FloatArray) -> tuple[float, float | None, float | None]:
    """Return AL incl. bonus of sums [columns], and its 95% interval; None where there are fewer
    than two requests."""
    value = ratio_of(sums)
    error = _error(sums, value)
    low, high = np.maximum(1.0, value - Z95 * error), value + Z95 * error
    return float(value), _number(float(low)), _number(float(high))


def _binned(sums: FloatArray, width: int) -> FloatArray:
    """Return sums [columns, hours] of `width` hours each."""
    binned: FloatArray = sums.reshape(len(sums), -1, width).sum(2)
    return binned


def _error(sums: FloatArray, value: FloatArray) -> FloatArray:
    """Return the standard error of a ratio of sums; NaN where there are fewer than two requests."""
    count = sums[N]
    spread = squares(sums, value) * divide(count, count - 1)
    return divide(np.sqrt(spread), np.where(count > 1, sums[R], 0.0))


def _number(value: float) -> float | None:
    return round(float(value), PLACES) if math.isfinite(value) else None
