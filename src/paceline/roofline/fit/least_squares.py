"""Bounded nonlinear least squares (Levenberg-Marquardt, Marquardt 1963) for a handful of unknowns.

The Jacobian is by forward differences, and the bounds by clipping each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ROUNDS = 60
STEP = 1e-5  # of a finite difference; the unknowns are scaled to be about 1
SETTLED = 1e-9  # a round that lowers the sum of squares by less of it is the last


@dataclass(frozen=True)
class Solution:
    """`values` [k], the residuals there [n] and their Jacobian [n, k]."""

    values: np.ndarray
    residuals: np.ndarray
    jacobian: np.ndarray

    @property
    def squares(self) -> float:
        return float(self.residuals @ self.residuals)

    @property
    def left_out(self) -> float:
        """Sum of squared errors of each point predicted from all others (PRESS): what is left of
        an unknown's gain when it may not learn a point by heart. Infinite without points to spare.
        """
        count, unknowns = self.jacobian.shape
        if count <= unknowns:
            return float("inf")
        pulls = np.einsum("ij,ji->i", self.jacobian, np.linalg.pinv(self.jacobian))
        free = 1.0 - np.minimum(pulls, 1.0)
        if free.min() < 1e-6:
            return float("inf")
        return float(np.sum((self.residuals / free) ** 2))

    def deviations(self) -> np.ndarray:
        """Standard error of each unknown; infinite for one that no residual depends on."""
        count, unknowns = self.jacobian.shape
        if count <= unknowns:
            return np.full(unknowns, np.inf)
        normal = self.jacobian.T @ self.jacobian
        if np.linalg.matrix_rank(normal, tol=1e-10 * max(1.0, float(np.trace(normal)))) < unknowns:
            return np.full(unknowns, np.inf)
        variance = self.squares / (count - unknowns)
        deviations: np.ndarray = np.sqrt(variance * np.diag(np.linalg.inv(normal)))
        return deviations


def solve(
    residuals: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
) -> Solution:
    """Find the values from `low` to `high` [k] near `start` with the least squared residuals."""
    values = np.clip(start, low, high)
    current = residuals(values)
    damping = 1e-2
    jacobian = derivatives(residuals, values, current, high)
    for _ in range(ROUNDS):
        normal, gradient = jacobian.T @ jacobian, jacobian.T @ current
        # an unknown that nothing depends on yet stays where it is
        damped = normal + damping * np.diag(np.maximum(np.diag(normal), 1e-9))
        step = np.linalg.lstsq(damped, gradient, rcond=None)[0]
        moved = np.clip(values - step, low, high)
        there = residuals(moved)
        gain = float(current @ current - there @ there)
        if gain <= 0:
            damping *= 5
            if damping > 1e9:
                break
            continue
        settled = gain < SETTLED * float(current @ current)
        values, current, damping = moved, there, damping / 5
        jacobian = derivatives(residuals, values, current, high)
        if settled:
            break
    return Solution(values, current, jacobian)


def derivatives(
    residuals: Callable[[np.ndarray], np.ndarray],
    values: np.ndarray,
    current: np.ndarray,
    high: np.ndarray,
) -> np.ndarray:
    """The Jacobian [n, k] at `values`, where the residuals are `current`."""
    columns = []
    for index in range(len(values)):
        step = STEP if values[index] + STEP <= high[index] else -STEP
        moved = values.copy()
        moved[index] += step
        columns.append((residuals(moved) - current) / step)
    return np.stack(columns, axis=1) if columns else np.zeros((len(current), 0))
