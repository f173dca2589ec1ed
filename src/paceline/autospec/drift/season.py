"""The seasonal reference of a cohort: what its AL usually is in each hour of the week.

AL of an hour = level + hour of day + weekend + day of week + hour of week. Each effect is a robust
weighted mean of what the earlier ones leave, shrunk towards zero as far as its standard error says
(empirical Bayes): with few days the reference is little more than the level and the hours of the
day, after a week it knows weekends, and with more weeks each day.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from paceline.autospec.sums import (
    BoolArray,
    FloatArray,
    IntArray,
    N,
    R,
    T,
    divide,
    residuals,
    squares,
)

TWO_WEEKS = 14  # days from which days of the week are told from days
HUBER = 2.5  # standard deviations beyond which an hour or a day counts for less
PASSES = 2
USUAL_WEEKEND = 0.03  # how far weekends usually lie from other days, relative to AL
SATURDAY = 5
PRIOR_DAYS = 4  # days that the assumed deviation of a day weighs


@dataclass(frozen=True, slots=True)
class Season:
    """The reference of each row (a cohort).

    level       AL of the reference period
    by_hour     AL expected in each hour of the week, [rows, 7, 24], Monday first
    variance    of a request's residual t − AL·r
    day         standard deviation of a day's AL around its season
    error       standard error of the level; `weekend_error` of the difference of weekends
    weekends    share of the reference's rounds that lie on weekends
    days        days with requests
    """

    level: FloatArray
    by_hour: FloatArray
    variance: FloatArray
    day: FloatArray
    error: FloatArray
    weekend_error: FloatArray
    weekends: FloatArray
    days: IntArray

    def expected(self, weekday: IntArray) -> FloatArray:
        """Return the expected AL [rows, days, 24] of days with these weekdays [rows, days]."""
        return _expected(self.by_hour, weekday)


def fit_season(
    sums: FloatArray,
    used: BoolArray,
    weekday: IntArray,
    usual_deviation: float,
    passes: int = PASSES,
) -> Season:
    """Fit the reference of each row to the `used` hours of sums [columns, rows, days, 24].

    `usual_deviation` is the deviation of days, relative to AL, that is assumed before they tell.
    The first of the `passes` trusts all hours alike. A row without any used hour gets NaN.
    """
    sums = sums * used
    rounds, requests = sums[R], sums[N]
    level = divide(_all(sums[T]), _all(rounds))
    variance = divide(_all(squares(sums, level[:, None, None])), _all(requests))
    days = (rounds.sum(2) > 0).sum(1)
    weekdays = (weekday[..., None] == np.arange(7)).astype(float)  # [rows, days, 7]
    trust = np.ones_like(rounds)
    deviation = usual_deviation * level
    by_hour = np.zeros((len(rounds), 7, 24)) + level[:, None, None]
    for _ in range(passes):
        by_hour, left, weekend_error = _effects(sums, trust, weekdays, variance, deviation, days)
        daily = divide(left.sum(2), rounds.sum(2), 0.0)
        noise = divide(variance[:, None] * requests.sum(2), rounds.sum(2) ** 2, 0.0)
        deviation = _day_deviation(daily, noise, days, usual_deviation * level)
        spread = np.sqrt(
            variance[:, None, None] * requests + (deviation[:, None, None] * rounds) ** 2
        )
        apart = np.sqrt(noise + deviation[:, None] ** 2)
        trust = _trust(left, spread) * _trust(daily, apart)[..., None]
    level = divide(_all(trust * rounds * _expected(by_hour, weekday)), _all(trust * rounds))
    error = np.sqrt(
        divide(variance * _all(requests), _all(rounds) ** 2) + divide(deviation**2, days)
    )
    expected = _expected(by_hour, weekday)
    variance = divide(_all(squares(sums, expected)), _all(requests))
    weekends = divide(_all(rounds * (weekday >= SATURDAY)[..., None]), _all(rounds))
    return Season(level, by_hour, variance, deviation, error, weekend_error, weekends, days)


def _effects(
    sums: FloatArray,
    trust: FloatArray,
    weekdays: FloatArray,
    variance: FloatArray,
    deviation: FloatArray,
    days: IntArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the AL by hour of the week, what it leaves of each hour's tokens, and the standard
    error of the difference of weekends."""
    rounds, requests = trust * sums[R], trust**2 * sums[N]
    level = divide(_all(trust * sums[T]), _all(rounds))
    left = residuals(sums, level[:, None, None])
    hour = _shrunk(
        (trust * left).sum(1), rounds.sum(1), variance[:, None] * requests.sum(1), 0.0
    )  # [rows, 24]
    left = left - hour[:, None] * sums[R]
    daily = _DayTotals.of((trust * left).sum(2), rounds.sum(2), requests.sum(2), weekdays)
    noise = daily.noise(variance, deviation)
    weekend, weekend_error = _weekend(daily, noise, USUAL_WEEKEND * level)
    daily = daily.without(weekend)
    day = _shrunk(daily.left, daily.rounds, noise, 0.0)
    day = np.where(days[:, None] >= TWO_WEEKS, day, 0.0)
    day = day + weekend
    left = left - np.einsum("rk,rdk->rd", day, weekdays)[..., None] * sums[R]
    both = _shrunk(
        _by_weekday(trust * left, weekdays).reshape(len(days), -1),
        _by_weekday(rounds, weekdays).reshape(len(days), -1),
        variance[:, None] * _by_weekday(requests, weekdays).reshape(len(days), -1),
        0.0,
    ).reshape(-1, 7, 24)
    both = np.where(days[:, None, None] >= TWO_WEEKS, both, 0.0)
    left = left - np.einsum("rkh,rdk->rdh", both, weekdays) * sums[R]
    by_hour = level[:, None, None] + hour[:, None] + day[:, :, None] + both
    return by_hour, left, weekend_error


@dataclass(frozen=True, slots=True)
class _DayTotals:
    """What is left of the tokens, by day of the week, [rows, 7], with what its noise needs."""

    left: FloatArray
    rounds: FloatArray
    requests: FloatArray
    squared: FloatArray  # Σ of the squared rounds of days: a day's own deviation is shared by all

    @classmethod
    def of(
        cls, left: FloatArray, rounds: FloatArray, requests: FloatArray, weekdays: FloatArray
    ) -> _DayTotals:
        """Sum values of days, [rows, days]."""
        columns = np.stack([left, rounds, requests, rounds**2], 1)
        return cls(*np.matmul(columns, weekdays).transpose(1, 0, 2))

    def noise(self, variance: FloatArray, deviation: FloatArray) -> FloatArray:
        """Return the variance of `left`."""
        noise: FloatArray = (
            variance[:, None] * self.requests + deviation[:, None] ** 2 * self.squared
        )
        return noise

    def without(self, effect: FloatArray) -> _DayTotals:
        return replace(self, left=self.left - effect * self.rounds)


def _weekend(
    daily: _DayTotals, noise: FloatArray, usual: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the effects of weekends and of other days, [rows, 7], and the standard error of their
    difference. It is shrunk by a fixed prior: one difference does not tell how far such spread."""
    parts = (slice(0, SATURDAY), slice(SATURDAY, 7))
    rounds = [daily.rounds[:, part].sum(1) for part in parts]
    means = [
        divide(daily.left[:, part].sum(1), total, 0.0)
        for part, total in zip(parts, rounds, strict=True)
    ]
    errors = [
        divide(noise[:, part].sum(1), total**2, 0.0)
        for part, total in zip(parts, rounds, strict=True)
    ]
    both = (rounds[0] > 0) & (rounds[1] > 0)
    trust = np.where(both, divide(usual**2, usual**2 + errors[0] + errors[1], 0.0), 0.0)
    apart = (means[1] - means[0]) * trust
    share = divide(rounds[1], rounds[0] + rounds[1], 0.0)
    effect = np.zeros_like(daily.left)
    effect[:, parts[0]] = (-share * apart)[:, None]
    effect[:, parts[1]] = ((1 - share) * apart)[:, None]
    return effect, usual * np.sqrt(1 - trust)


def _by_weekday(values: FloatArray, weekdays: FloatArray) -> FloatArray:
    summed: FloatArray = np.matmul(weekdays.transpose(0, 2, 1), values)
    return summed


def _shrunk(
    left: FloatArray, rounds: FloatArray, noise: FloatArray, shared: FloatArray | float
) -> FloatArray:
    """Return the effects Σ left ÷ Σ rounds of each row, shrunk by the share of their spread that
    is noise. `noise` and `shared` are variances of Σ left."""
    effect = divide(left, rounds, 0.0)
    error = divide(noise + shared, rounds**2, 0.0)
    weight = divide(rounds, rounds.sum(-1, keepdims=True), 0.0)
    spread = (weight * (effect**2 - error)).sum(-1, keepdims=True)
    real = np.maximum(spread, 0.0)
    return effect * divide(real, real + error, 0.0)


def _day_deviation(
    daily: FloatArray, noise: FloatArray, days: IntArray, usual: FloatArray
) -> FloatArray:
    """Return the standard deviation of days beyond their noise: the usual one at least, which
    also counts as a prior of a few days."""
    free = np.maximum(days - np.where(days >= TWO_WEEKS, 8, 1), 0)
    limit = 9 * (noise + usual[:, None] ** 2)  # one odd day must not excuse the others
    excess = np.minimum(daily**2, limit) - noise
    excess = np.where(noise > 0, excess, 0.0).sum(1)
    scaled = excess * divide(free, days, 0.0)
    found = np.sqrt(np.maximum(scaled + PRIOR_DAYS * usual**2, 0.0) / (free + PRIOR_DAYS))
    least: FloatArray = np.maximum(found, usual)  # effects take up part of what days deviate by
    return least


def _trust(left: FloatArray, spread: FloatArray) -> FloatArray:
    """Return Huber's weights."""
    apart = np.abs(divide(left, spread, 0.0))
    return np.where(apart > HUBER, HUBER / np.maximum(apart, HUBER), 1.0)


def _expected(by_hour: FloatArray, weekday: IntArray) -> FloatArray:
    expected: FloatArray = by_hour[np.arange(len(by_hour))[:, None], weekday]
    return expected


def _all(values: FloatArray) -> FloatArray:
    total: FloatArray = values.sum((1, 2))
    return total
