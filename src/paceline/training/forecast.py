"""A forecast of the acceptance length at the end of a run, from its evaluations so far.

AL - 1 grows about as a power of the slots that were learnt; the exponent was 0.25 to 0.31 in the
project's own runs. The fit is a straight line through logarithms (Bayesian linear regression,
Bishop 2006, section 3.3), which knows this range beforehand, so that few points are enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EXPONENT, SPREAD = 0.28, 0.04  # known beforehand: mean and standard deviation
LEAST_NOISE = 0.02  # of ln(AL - 1) of one evaluation, on some dozens of texts
POINTS = 3  # evaluations that a forecast needs
RECENT = 0.1  # points with fewer slots than this share of the newest say little about the power
NINETY = 1.645  # standard deviations of a normal distribution's middle 90%


@dataclass(frozen=True, slots=True)
class Forecast:
    """An acceptance length incl. bonus, and its 90% interval."""

    al: float
    low: float
    high: float


def forecast(points: Sequence[tuple[float, float]], slots: float) -> Forecast | None:
    """Forecast the acceptance length after `slots` slots from `points`, (slots, AL) in the order of
    the run. Return None for fewer than three usable points, or where there is nothing to come.

    The interval holds the noise of evaluations and what the fit leaves open; it knows nothing of
    a learning rate that falls, which adds to the length.
    """
    usable = [(x, y) for x, y in points if x > 0 and y > 1]
    usable = [(x, y) for x, y in usable if x >= RECENT * usable[-1][0]]
    if len(usable) < POINTS or slots <= usable[-1][0]:
        return None
    # Seen from the newest point, so that the level there and the power are nearly independent.
    x = np.log([x / usable[-1][0] for x, _ in usable])
    y = np.log([length - 1 for _, length in usable])
    residual = y - (y.mean() + EXPONENT * (x - x.mean()))
    noise = max(LEAST_NOISE, float(residual.std(ddof=1)))
    design = np.stack((np.ones_like(x), x), axis=1)
    prior = np.diag((0.0, SPREAD**-2))
    covariance = np.linalg.inv(design.T @ design / noise**2 + prior)
    fitted = covariance @ (design.T @ y / noise**2 + prior @ np.array((0.0, EXPONENT)))
    there = np.array((1.0, math.log(slots / usable[-1][0])))
    middle = float(there @ fitted)
    deviation = NINETY * math.sqrt(float(there @ covariance @ there) + noise**2)
    al, low, high = (1 + math.exp(middle + sign * deviation) for sign in (0, -1, 1))
    return Forecast(al, low, high)
