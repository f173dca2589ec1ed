"""ADWIN: a window that drops its oldest part when two parts of it differ (Bifet & Gavaldà 2007).

Two parts with n₀ and n₁ values differ when |μ₀ − μ₁| > ε, where with 1/m = 1/n₀ + 1/n₁
and δ' = δ ÷ ln n: ε = √(2/m · σ² · ln(2/δ')) + 2/(3m) · ln(2/δ').
"""

from __future__ import annotations

import numpy as np

from paceline.autospec.sums import BoolArray, FloatArray, IntArray, divide

SHORTEST = 5  # values of a part
FIRST = 10  # values before anything is compared
MOST_EQUAL = 5  # buckets of one size


def cut_bound(
    before: FloatArray, after: FloatArray, variance: FloatArray | float, delta: float
) -> FloatArray:
    """Return ε for parts of `before` and `after` values."""
    least = SHORTEST - 1
    inverse = 1 / np.maximum(before - least, 1) + 1 / np.maximum(after - least, 1)
    log = np.log(2 * np.log(np.maximum(before + after, 2)) / delta)
    bound: FloatArray = np.sqrt(2 * inverse * variance * log) + 2 / 3 * inverse * log
    return bound


class Adwin:
    """ADWIN over a stream, with buckets of exponentially growing size in place of the values.

    clock     values between two comparisons
    restart   start with an empty window after a cut, as libraries do, instead of keeping its newer
              part: a cut then counts once
    grain     values that the smallest bucket holds. 1 is the published algorithm. With
              grain = clock a stream costs a fraction, and parts are cut between grains only
    """

    def __init__(
        self, delta: float = 0.002, clock: int = 32, grain: int = 1, *, restart: bool = False
    ) -> None:
        self._delta, self._clock, self._grain, self._restart = delta, clock, grain, restart
        self._seen = 0
        # newest first: how many grains each bucket holds, its sum, its squares around its mean
        self._sizes: list[int] = []
        self._totals: list[float] = []
        self._squares: list[float] = []

    @property
    def width(self) -> int:
        """The number of values in the window."""
        return sum(self._sizes) * self._grain

    @property
    def mean(self) -> float:
        """The mean of the window; 0 while it is empty."""
        return sum(self._totals) / self.width if self._sizes else 0.0

    def update(self, value: float) -> bool:
        """Add a value, and return whether the window was cut. Needs a grain of 1."""
        return self._add(value, 0.0)

    def update_many(self, values: FloatArray) -> list[int]:
        """Add values, a multiple of the grain, and return the indices at which the window was
        cut."""
        grains = values.reshape(-1, self._grain)
        totals = grains.sum(1)
        spread = ((grains - grains.mean(1, keepdims=True)) ** 2).sum(1)
        added = zip(totals.tolist(), spread.tolist(), strict=True)
        cuts = [self._add(total, squares) for total, squares in added]
        return [(index + 1) * self._grain - 1 for index, cut in enumerate(cuts) if cut]

    def _add(self, total: float, squares: float) -> bool:
        self._sizes.insert(0, 1)
        self._totals.insert(0, total)
        self._squares.insert(0, squares)
        self._merge()
        self._seen += self._grain
        if self._seen % self._clock or self.width < FIRST:
            return False
        is_cut = False
        while len(self._sizes) > 1 and self._differs():
            is_cut = True
            self._drop(len(self._sizes) if self._restart else 1)
        return is_cut

    def _drop(self, oldest: int) -> None:
        for buckets in (self._sizes, self._totals, self._squares):
            del buckets[-oldest:]
        if not self._sizes:
            self._seen = 0

    def _merge(self) -> None:
        """Join the two oldest buckets of a size where there are more than MOST_EQUAL of it."""
        first = 0
        while first < len(self._sizes):
            size, last = self._sizes[first], first
            while last + 1 < len(self._sizes) and self._sizes[last + 1] == size:
                last += 1
            if last - first < MOST_EQUAL:
                return
            a, b, count = self._totals[last - 1], self._totals[last], size * self._grain
            self._squares[last - 1] += self._squares[last] + (a - b) ** 2 / (2 * count)
            self._totals[last - 1] = a + b
            self._sizes[last - 1] = 2 * size
            for buckets in (self._sizes, self._totals, self._squares):
                del buckets[last]
            first = last - 1

    def _differs(self) -> bool:
        """Return whether some boundary between buckets divides the window in two that differ."""
        counts = np.array(self._sizes[::-1], float) * self._grain
        totals = np.array(self._totals[::-1])
        whole, total = counts.sum(), totals.sum()
        between = (totals**2 / counts).sum() - total**2 / whole
        variance = (sum(self._squares) + max(0.0, between)) / whole
        before, sums = counts.cumsum()[:-1], totals.cumsum()[:-1]
        after = whole - before
        apart = np.abs(sums / before - (total - sums) / after)
        wide = (before >= SHORTEST) & (after >= SHORTEST)
        return bool(np.any(wide & (apart > cut_bound(before, after, variance, self._delta))))


def strongest_cut(
    counts: FloatArray,
    totals: FloatArray,
    squares: FloatArray,
    delta: float,
    least: tuple[FloatArray, FloatArray],
) -> tuple[IntArray, BoolArray, FloatArray]:
    """Find where rows of grouped values divide best into two parts, as ADWIN compares them.

    All are [rows, groups]: the number of values in each group, their sums, their sums of squares.
    `least` are the numbers of values, [rows], that the parts before and behind must have. Returns
    for each row the index of the first group behind the cut, whether ADWIN's bound is exceeded
    there, and by how much the mean behind it lies above the mean before.
    """
    n, total = counts.cumsum(-1), totals.cumsum(-1)
    whole, sums = n[:, -1:], total[:, -1:]
    variance = divide(squares.sum(-1, keepdims=True), whole, 0.0)
    variance = np.maximum(variance - divide(sums, whole, 0.0) ** 2, 1e-12)
    before, after = n[:, :-1], whole - n[:, :-1]
    step = divide(sums - total[:, :-1], after, 0.0) - divide(total[:, :-1], before, 0.0)
    enough = (before >= least[0][:, None]) & (after >= least[1][:, None])
    strength = np.where(enough, step**2 * divide(before * after, whole, 0.0), -1.0)
    best = strength.argmax(-1)
    rows = np.arange(len(best))
    bound = cut_bound(before[rows, best], after[rows, best], variance[:, 0], delta)
    chosen = step[rows, best]
    return best + 1, enough[rows, best] & (np.abs(chosen) > bound), chosen
