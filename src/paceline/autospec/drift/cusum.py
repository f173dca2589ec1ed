"""CUSUM: the sum of what falls short, never below zero (Page 1954).

S ← max(0, S + x − allowance), and an alarm where S exceeds the threshold. The allowance is half the
smallest shift that matters, in the unit of x. Siegmund's approximation (1985) gives the threshold
for a wanted mean number of values between false alarms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from paceline.autospec.sums import FloatArray

OVERSHOOT = 1.166  # Siegmund's correction: how far a normal walk jumps past its two bounds


@dataclass(slots=True)
class Cusum:
    """The statistic over a stream of values; `statistic` is S."""

    allowance: float
    threshold: float
    statistic: float = 0.0

    def update(self, value: float) -> bool:
        """Add a value, and return whether S exceeds the threshold."""
        self.statistic = max(0.0, self.statistic + value - self.allowance)
        return self.statistic > self.threshold


def statistics(steps: FloatArray) -> FloatArray:
    """Return S after each of the steps (x − allowance), along the last axis, for whole arrays."""
    sums = np.cumsum(steps, axis=-1)
    lowest = np.minimum(np.minimum.accumulate(sums, axis=-1), 0.0)
    above: FloatArray = sums - lowest
    return above


def threshold(allowance: ArrayLike, run_length: ArrayLike) -> FloatArray:
    """Return the threshold with a mean of `run_length` values between false alarms, for values of
    standard deviation 1: ARL = (exp(2kb) − 2kb − 1) ÷ 2k² with b = threshold + OVERSHOOT."""
    k = np.maximum(np.asarray(allowance, float), 1e-6)
    wanted = 2 * k * k * np.maximum(np.asarray(run_length, float), 1.0)
    exponent = np.log1p(wanted) + 1.0
    for _ in range(8):
        exponent = np.log(wanted + exponent + 1)
    found: FloatArray = np.maximum(exponent / (2 * k) - OVERSHOOT, 0.0)
    return found
