"""How many rows a step may take, from measured step times.

A step costs little more for a few rows than for one, then grows with every row. While somebody is
decoding, a joining prompt gets as many rows as keep the step within `max_stretch` of a plain decode
step; with nobody waiting for a token it gets the whole budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

GRID = (1, 8, 16, 32, 64)
REPEATS = 3


class StepCost:
    """Seconds of a target forward by rows: measured on a small grid, linear between and beyond."""

    def __init__(self, rows: list[int], seconds: list[float]) -> None:
        self.rows = rows
        # More rows never cost less; a dip in the measurement is noise.
        self.seconds = list(np.maximum.accumulate(seconds))

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

    def __call__(self, rows: int) -> float:
        return float(self.many(np.array([rows]))[0])

    def many(self, rows: np.ndarray) -> np.ndarray:
        """Seconds for each of several numbers of rows."""
        inside = np.interp(rows, self.rows, self.seconds)
        if len(self.rows) == 1:
            return inside
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.rows[-1] - self.rows[-2])
        return inside + slope * np.maximum(0, rows - self.rows[-1])

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
