"""Sums of a ratio metric over requests, from which its value and its variance follow.

Acceptance length is Σtokens ÷ Σrounds, and the unit is the request, since the rounds of one answer
hang together. The delta method gives the variance: R = Σt ÷ Σr deviates from a reference R₀ by
Σ(t − R₀·r) ÷ Σr, a sum of one independent residual per request. Six sums hold all of it, and sums
add up: over hours, cohorts, parts of a stream.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

# columns of sums, their first axis: requests, Σt, Σr, Σt², Σt·r, Σr²
N, T, R, TT, TR, RR = range(6)
MOMENTS = 6


def moments(tokens: ArrayLike, rounds: ArrayLike) -> FloatArray:
    """Return the summands of requests, [6, ...]."""
    t, r = np.asarray(tokens, float), np.asarray(rounds, float)
    return np.stack([np.ones_like(t), t, r, t * t, t * r, r * r])


def ratio_of(sums: FloatArray) -> FloatArray:
    """Return Σt ÷ Σr of sums [6 or more, ...]; NaN where there is no round."""
    return divide(sums[T], sums[R])


def residuals(sums: FloatArray, reference: FloatArray | float) -> FloatArray:
    """Return Σ(t − reference·r)."""
    whole: FloatArray = sums[T] - reference * sums[R]
    return whole


def squares(sums: FloatArray, reference: FloatArray | float) -> FloatArray:
    """Return Σ(t − reference·r)², never below zero."""
    reference = np.asarray(reference)
    whole = sums[TT] - reference * (2 * sums[TR] - reference * sums[RR])
    above: FloatArray = np.maximum(whole, 0.0)
    return above


def divide(above: ArrayLike, below: ArrayLike, nothing: float = np.nan) -> FloatArray:
    """Return above ÷ below, and `nothing` where `below` is zero."""
    above, below = np.asarray(above, float), np.asarray(below, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = above / below
    return np.where(below != 0, quotient, nothing)
