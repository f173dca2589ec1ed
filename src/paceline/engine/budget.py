"""What a step costs by its rows: timed at the start, then learned from the steps themselves.

A step costs little more for a few rows than for one, then grows with every row. Draft lengths
follow this cost (`engine.lengths`), and so does the share of a joining prompt: while somebody is
decoding, it gets as many rows as keep the step within `max_stretch` of a plain decode step; with
nobody waiting for a token it gets the whole budget.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate

GRID = (1, 2, 4, 8, 16, 32, 64)
REPEATS = 3
PACE = 0.2  # share of a step's news that goes into the common factor: contexts and machines change
LEARNING = 0.02  # share that goes into the cost of its number of rows: the shape changes slowly
OUTLIER = 2.0  # a step that took this many times longer than expected was held up by others


class StepCost:
    """Seconds of a step by its rows: known on a small grid, linear between and beyond."""

    def __init__(self, rows: list[int], seconds: list[float]) -> None:
        self.rows = rows
        self._shape = list(seconds)
        self._factor = 1.0
        self._seconds: list[float] | None = None

    @property
    def seconds(self) -> list[float]:
        """At each of `rows`. More rows never cost less; a dip in what was measured is noise."""
        if self._seconds is None:
            self._seconds = [self._factor * most for most in accumulate(self._shape, max)]
        return self._seconds

    @classmethod
    def measure(cls, forward: Callable[[int], object], most: int) -> StepCost:
        """Times `forward(rows)` over the grid up to `most` rows; the minimum of a few repeats."""
        grid = [rows for rows in GRID if rows <= most]
        best = [float("inf")] * len(grid)
        forward(grid[-1])
        for _ in range(REPEATS):
            for index, rows in enumerate(grid):
                start = time.perf_counter()
                forward(rows)
                best[index] = min(best[index], time.perf_counter() - start)
        return cls(grid, best)

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows took `seconds`, the engine's own work included, drafting not."""
        if rows > self.rows[-1]:
            return
        shape = self._shape
        above = bisect_left(self.rows, rows)
        below = above if self.rows[above] == rows else above - 1
        share = (rows - self.rows[below]) / (self.rows[above] - self.rows[below] or 1)
        expected = self._factor * (shape[below] + share * (shape[above] - shape[below]))
        news = min(max(seconds / expected, 1 / OUTLIER), OUTLIER) - 1
        self._factor *= 1 + PACE * news
        shape[below] *= 1 + LEARNING * (1 - share) * news
        shape[above] *= 1 + LEARNING * share * news
        self._seconds = None

    def __call__(self, rows: int) -> float:
        """Seconds of a step of `rows` rows."""
        seconds = self.seconds
        if len(seconds) == 1:
            return seconds[0]
        above = min(max(1, bisect_left(self.rows, rows)), len(seconds) - 1)
        below = above - 1
        slope = (seconds[above] - seconds[below]) / (self.rows[above] - self.rows[below])
        return seconds[below] + slope * (max(rows, self.rows[0]) - self.rows[below])

    def chunk_rows(self, decode_rows: int, stretch: float, most: int) -> int:
        """Rows, at least 1, that a prompt may add to a step of `decode_rows` rows."""
        allowed = stretch * self(decode_rows)
        low, high = 1, max(1, most - decode_rows)
        while low < high:
            middle = (low + high + 1) // 2
            if self(decode_rows + middle) <= allowed:
                low = middle
            else:
                high = middle - 1
        return low
