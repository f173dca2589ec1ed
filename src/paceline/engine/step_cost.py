"""Seconds of a step by its rows: timed at the start, then learned from the steps themselves.

A step costs little more for a few rows than for one, then grows with every row. Draft lengths
follow this cost (`engine.lengths`), and so does the share of prompts (`engine.prompt_share`).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated

from pydantic import ConfigDict, Field, NonNegativeFloat

GRID = (1, 2, 4, 8, 12, 16, 17, 24, 32, 33, 48, 49, 64)  # rows of one request
WIDE = ((8, 8), (32, 32), (8, 64))  # (requests, rows): what a request costs beside its rows
REPEATS = 3
PACE = 0.2  # share of a step's news that goes into the common factor: contexts and machines change
LEARNING = 0.02  # share that goes into the cost of its number of rows: the shape changes slowly
OUTLIER = 2.0  # a step that took this many times longer than expected was held up by others


def timed(work: Callable[..., object], *arguments: int) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


@dataclass(eq=False)
class StepCost:
    """Seconds of a step by its rows: known on a small grid, linear between and beyond. Every
    request beyond the first adds `per_request`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    rows: list[int]
    shape: list[Annotated[float, Field(gt=0, lt=1e4)]]
    per_request: NonNegativeFloat = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError for rows that are no grid."""
        grid = sorted(set(self.rows))
        if not grid or list(self.rows) != grid or len(grid) != len(self.shape):
            raise ValueError("not a grid of rows")
        self.shape, self._factor = list(self.shape), 1.0
        self._seconds: list[float] | None = None

    @property
    def seconds(self) -> list[float]:
        """At each of `rows`. More rows never cost less; a dip in what was measured is noise."""
        seconds = self._seconds  # the engine's thread may observe a step while others read
        if seconds is None:
            seconds = [self._factor * most for most in accumulate(self.shape, max)]
            self._seconds = seconds
        return seconds

    @classmethod
    def measure(cls, forward: Callable[[int, int], object], most: int, widest: int = 1) -> StepCost:
        """Time `forward(rows, requests)` over the grid up to `most` rows and `widest` requests."""
        points = [(1, rows) for rows in GRID if rows <= most]
        points += [pair for pair in WIDE if pair[0] <= widest and pair[1] <= most]
        best = dict.fromkeys(points, float("inf"))
        forward(points[-1][1], 1)
        for _ in range(REPEATS):
            for requests, rows in points:
                seconds = timed(forward, rows, requests)
                best[requests, rows] = min(best[requests, rows], seconds)
        alone = {rows: best[1, rows] for requests, rows in points if requests == 1}
        cost = cls(list(alone), list(alone.values()))
        wide = [(requests - 1, best[requests, rows] - cost(rows)) for requests, rows in points]
        weight = sum(count * count for count, _ in wide) or 1
        cost.per_request = max(0.0, sum(count * extra for count, extra in wide) / weight)
        return cost

    def rescale(self, pace: float) -> None:
        self._factor *= pace
        self._seconds = None

    def observe(self, rows: int, seconds: float, requests: int = 1) -> None:
        """A step of `rows` rows took `seconds`, the engine's own work included, drafting not."""
        if rows > self.rows[-1]:
            return
        shape = self.shape
        above = bisect_left(self.rows, rows)
        below = above if self.rows[above] == rows else above - 1
        share = (rows - self.rows[below]) / (self.rows[above] - self.rows[below] or 1)
        expected = self._factor * (
            shape[below] + share * (shape[above] - shape[below]) + (requests - 1) * self.per_request
        )
        news = min(max(seconds / expected, 1 / OUTLIER), OUTLIER) - 1
        self._factor *= 1 + PACE * news
        shape[below] *= 1 + LEARNING * (1 - share) * news
        shape[above] *= 1 + LEARNING * share * news
        self._seconds = None

    def __call__(self, rows: int, requests: int = 1) -> float:
        return self._by_rows(rows) + (requests - 1) * self._factor * self.per_request

    def upwards(self, rows: int, count: int, requests: int) -> list[float]:
        """Seconds of steps of `rows` to `rows + count` rows: [count + 1]."""
        found: list[float] = []
        while len(found) <= count:
            start = rows + len(found)
            above, slope = self._segment(start)
            end = rows + count
            if start <= self.rows[above]:
                end = min(end, self.rows[above])
            first = self(start, requests)
            found += [first + slope * more for more in range(end - start + 1)]
        return found

    def row_seconds(self, rows: int, count: int) -> float:
        """Seconds that each of `count` more rows adds to a step of `rows`, on average."""
        count = max(1, count)
        return (self._by_rows(rows + count) - self._by_rows(rows)) / count

    def _by_rows(self, rows: int) -> float:
        above, slope = self._segment(rows)
        return self.seconds[above] + slope * (max(rows, self.rows[0]) - self.rows[above])

    def _segment(self, rows: int) -> tuple[int, float]:
        """The end of the line that `rows` lies on, as an index, and the line's slope."""
        seconds = self.seconds
        if len(seconds) == 1:
            return 0, 0.0
        above = min(max(1, bisect_left(self.rows, rows)), len(seconds) - 1)
        rise = seconds[above] - seconds[above - 1]
        return above, rise / (self.rows[above] - self.rows[above - 1])

    def rows_within(self, seconds: float, rows: int, most: int) -> int:
        """Return how many rows, 1 to `most`, a step of `rows` rows can have beside them within
        `seconds`."""
        low, high = 1, max(1, most)
        while low < high:
            middle = (low + high + 1) // 2
            if self(rows + middle) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low
