"""Confidence sequences: intervals that hold at every look at once, however often one looks.

Two arms are compared request by request. The interval is the normal mixture's (Robbins 1970; in its
asymptotic form Waudby-Smith et al. 2021): with n requests and v the variance of the difference,

    radius = √v · √(2 (nρ² + 1) ÷ nρ² · ln(√(nρ² + 1) ÷ α))

where ρ says at which n it is tightest. A test that looks often at a plain 95 % interval is wrong
far more often than in 5 % of the cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paceline.autospec.sums import FloatArray, N, R, divide, ratio_of, squares

LEAST = 10  # requests of an arm in a step before the step counts


@dataclass(frozen=True, slots=True)
class ArmDifference:
    """The canary's value of a metric beside the live drafter's.

    difference  between the two: relative to the live value, or absolute
    variance    of the difference
    requests    effective requests, n·m ÷ (n + m) of the arms: about the canary's while it is small
    """

    canary: FloatArray
    live: FloatArray
    difference: FloatArray
    variance: FloatArray
    requests: FloatArray

    def bounds(self, alpha: float, tuned: float) -> tuple[FloatArray, FloatArray]:
        """Return the interval whose each side is crossed, at any time, with probability alpha."""
        radius = sequence_radius(self.variance, self.requests, alpha, tuned)
        return self.difference - radius, self.difference + radius


def compare_arms(canary: FloatArray, live: FloatArray, *, relative: bool = True) -> ArmDifference:
    """Compare the arms within each step and add the steps up.

    `canary` and `live` are sums [6, steps, ...]. Steps divide the traffic differently and lie at
    different hours: pooling over them would compare nights with days. Steps are weighted by their
    effective requests. NaN where no step has enough.
    """
    count, other = canary[N], live[N]
    enough = (count >= LEAST) & (other >= LEAST) & (canary[R] > 0) & (live[R] > 0)
    effective = np.where(enough, divide(count * other, count + other, 0.0), 0.0)
    total = effective.sum(0)
    weight = divide(effective, total, 0.0)
    new, old = ratio_of(canary), ratio_of(live)
    new_variance, old_variance = _variance(canary, new), _variance(live, old)
    if relative:
        difference = divide(new, old) - 1
        variance = divide(new_variance + old_variance * divide(new, old) ** 2, old**2)
    else:
        difference, variance = new - old, new_variance + old_variance
    return ArmDifference(
        canary=_mean(weight, new, total),
        live=_mean(weight, old, total),
        difference=_mean(weight, difference, total),
        variance=_mean(weight**2, variance, total),
        requests=total,
    )


def sequence_radius(
    variance: FloatArray, requests: FloatArray, alpha: float, tuned: float
) -> FloatArray:
    """Return the half width of the interval. Either side alone is crossed with probability
    `alpha`, so that both are with twice that."""
    both = min(2 * alpha, 0.99)
    log = -2 * math.log(both)
    spread = requests * (log + math.log(log + 1)) / tuned
    width = 2 * divide(spread + 1, spread, np.inf) * np.log(np.sqrt(spread + 1) / both)
    radius: FloatArray = np.sqrt(variance * width)
    return radius


def _variance(sums: FloatArray, ratio: FloatArray) -> FloatArray:
    """Return the variance of a ratio, by the delta method."""
    few = sums[N] / np.maximum(sums[N] - 1, 1)
    return divide(squares(sums, np.nan_to_num(ratio)) * few, sums[R] ** 2)


def _mean(weight: FloatArray, values: FloatArray, total: FloatArray) -> FloatArray:
    mean = (weight * np.where(weight > 0, values, 0.0)).sum(0)
    return np.where(total > 0, mean, np.nan)
