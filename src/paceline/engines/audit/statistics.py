"""Chi-square laws, central and noncentral, and tests of counts against known laws.

scipy has all of this, but scipy is no dependency of Paceline: the tests hold these few functions
against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FEWEST = 5.0  # expected counts below this are pooled: Cochran's rule
RAREST = 0.01  # and so are bins that are less likely: each would cost power and show little
POWER = 0.9  # the power at which the smallest bias is stated
_TINY = 1e-300

Vector = NDArray[np.float64]


def chi2_tail(x: float, df: float) -> float:
    """Return the probability that a chi-square variable of `df` degrees exceeds `x`."""
    if x <= 0:
        return 1.0
    a, x = df / 2, x / 2
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        return max(0.0, 1.0 - front * _series(a, x))
    return front * _fraction(a, x)


def _series(a: float, x: float) -> float:
    """Sum of the series of the lower incomplete gamma function (Numerical Recipes, 6.2.5)."""
    term = total = 1 / a
    while term > total * 1e-17:
        a += 1
        term *= x / a
        total += term
    return total


def _fraction(a: float, x: float) -> float:
    """Lentz's continued fraction of the upper incomplete gamma function (ibid., 6.2.7)."""
    b = x + 1 - a
    c, d = 1 / _TINY, 1 / b
    value = d
    for i in range(1, 10_000):
        step = -i * (i - a)
        b += 2
        d = 1 / (step * d + b or _TINY)
        c = b + step / c or _TINY
        value *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return value


def chi2_limit(alpha: float, df: float) -> float:
    """Return the value that a chi-square variable of `df` degrees exceeds with probability
    `alpha`."""
    return _root(lambda x: alpha - chi2_tail(x, df), df)


def noncentral_tail(x: float, df: float, shift: float) -> float:
    """Return the probability that a noncentral chi-square variable exceeds `x`; `shift` is its
    noncentrality. A Poisson mixture of central ones."""
    half, total = shift / 2, 0.0
    middle, width = int(half), int(10 * math.sqrt(half + 1)) + 10
    for j in range(max(0, middle - width), middle + width):
        weight = math.exp(j * math.log(half) - half - math.lgamma(j + 1)) if half else float(j == 0)
        total += weight * chi2_tail(x, df + 2 * j)
    return min(1.0, total)


def shift_found(alpha: float, df: float, power: float = POWER) -> float:
    """Return the noncentrality that a chi-square test at level `alpha` finds with `power`."""
    limit = chi2_limit(alpha, df)
    return _root(lambda shift: noncentral_tail(limit, df, shift) - power, limit)


def _root(increasing: Callable[[float], float], guess: float) -> float:
    low, high = 0.0, max(1.0, guess)
    while increasing(high) < 0:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if increasing(middle) < 0 else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """A chi-square test. `samples` draws were tested; a bias that shifts the share `x` of every
    draw is found through the noncentrality `x² · sensitivity`, at least."""

    statistic: float
    df: int
    samples: int
    sensitivity: float

    @property
    def p(self) -> float:
        return chi2_tail(self.statistic, self.df) if self.df else 1.0

    def bias_found(self, alpha: float) -> float | None:
        """Return the total variation that the test at level `alpha` would have found with
        probability POWER, wherever it is; None for a test that finds nothing below 1."""
        if not self.df or not self.sensitivity:
            return None
        bias = math.sqrt(shift_found(alpha, self.df) / self.sensitivity)
        return bias if bias < 1 else None

    @classmethod
    def total(cls, parts: Iterable[ChiSquare]) -> ChiSquare:
        """Add independent tests of the same question."""
        several = [part for part in parts if part.df]
        return cls(
            sum(part.statistic for part in several),
            sum(part.df for part in several),
            sum(part.samples for part in several),
            sum(part.sensitivity for part in several),
        )


def g_test(observed: Sequence[int], law: Sequence[float]) -> ChiSquare:
    """Test counts against a law of probabilities with the G statistic, 2 Σ O ln(O / E), and
    Williams' correction.

    Bins that expect fewer than FEWEST, or are rarer than RAREST, are pooled into one.
    """
    counts, shares = np.asarray(observed, dtype=float), np.asarray(law, dtype=float)
    samples = float(counts.sum())
    counts, shares = _pooled(counts, shares / shares.sum(), samples)
    if len(counts) < 2:
        return ChiSquare(0.0, 0, int(samples), 0.0)
    seen = counts > 0
    expected = samples * shares
    statistic = 2 * float(np.sum(counts[seen] * np.log(counts[seen] / expected[seen])))
    statistic /= 1 + (float(np.sum(1 / shares)) - 1) / (6 * samples * (len(counts) - 1))
    largest = float(shares.max())
    variance = largest * (1 - largest) if largest > 0.5 else 0.25  # of the evenest split of bins
    return ChiSquare(max(0.0, statistic), len(counts) - 1, int(samples), samples / variance)


def _pooled(counts: Vector, shares: Vector, samples: float) -> tuple[Vector, Vector]:
    order = np.argsort(-shares)
    counts, shares = counts[order], shares[order]
    least = max(FEWEST, RAREST * samples)
    kept = int(np.searchsorted(-shares * samples, -least, side="right"))
    rest = float(shares[kept:].sum())
    if kept < len(shares) and rest * samples < FEWEST and kept:
        kept -= 1  # the pool itself is too small: it takes the smallest bin in
    tail = [counts[kept:].sum()] if kept < len(counts) else []
    tail_share = [shares[kept:].sum()] if kept < len(counts) else []
    return np.append(counts[:kept], tail), np.append(shares[:kept], tail_share)


class Cells(NamedTuple):
    """Counts in cells over draws whose laws differ: sums over draws of what was seen, of what was
    expected, and of the covariance of a draw."""

    observed: Vector
    expected: Vector
    covariance: NDArray[np.float64]
    samples: int


def score_test(cells: Cells) -> ChiSquare:
    """Test counts over draws of different laws: (O - E)ᵀ Σ⁻¹ (O - E) is chi-square.

    Each draw's law may depend on all draws before it (the martingale's central limit theorem), so
    the tokens of one answer count as that many draws.
    """
    cells = _merged(cells)
    bins = len(cells.observed)
    values, vectors = np.linalg.eigh(cells.covariance)
    kept = values > 1e-9 * max(float(values.max(initial=0.0)), _TINY)
    df = int(kept.sum())
    if not df or bins < 2:
        return ChiSquare(0.0, 0, cells.samples, 0.0)
    along = vectors[:, kept].T @ (cells.observed - cells.expected)
    statistic = float(np.sum(along**2 / values[kept]))
    # A bias of total variation x takes x from every draw in some set A of bins. The set whose
    # count varies most hides it best.
    most = max(_variance(cells.covariance, mask) for mask in range(1, 2 ** (bins - 1)))
    return ChiSquare(statistic, df, cells.samples, cells.samples**2 / most if most else 0.0)


def _variance(covariance: NDArray[np.float64], mask: int) -> float:
    inside = np.array([mask >> bit & 1 for bit in range(len(covariance))], dtype=float)
    return float(inside @ covariance @ inside)


def _merged(cells: Cells) -> Cells:
    """Merge cells that expect fewer than FEWEST into their neighbours."""
    observed, expected, covariance = cells.observed, cells.expected, cells.covariance
    while len(expected) > 1 and expected.min() < FEWEST:
        small = int(expected.argmin())
        other = small - 1 if small else 1
        merge = np.eye(len(expected))
        merge[other] += merge[small]
        merge = np.delete(merge, small, axis=0)
        observed, expected = merge @ observed, merge @ expected
        covariance = merge @ covariance @ merge.T
    return Cells(observed, expected, covariance, cells.samples)
