"""Seconds of a step by its rows: timed at the start, then learned from the steps themselves.

A step costs little more for a few rows than for one, then grows with every row, and with every
token that a prompt's rows look back on. Draft lengths follow this cost (`engine.lengths`), and so
does the share of prompts (`engine.prompt_share`).

A few rows take as long as the weights take to read, many rows as long as they take to multiply
with, and on a machine that is shared with others memory changes its pace far more than arithmetic
does. So reading has a pace of its own: where memory is slow, more rows cost little.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated

from pydantic import ConfigDict, Field, NonNegativeFloat

GRID = (1, 2, 4, 8, 12, 16, 17, 24, 32, 33, 48, 49, 64)  # rows of one request
WIDE = ((8, 8), (32, 32), (8, 64))  # (requests, rows): what a request costs beside its rows
FIRST = (1, 8, 32, 16, 4, 48)  # rows that are timed first, after the most: others lie between them
FAR = 2048  # tokens before the rows that show what looking back costs
NEAREST = 256  # such tokens that there must be
REPEATS = 3
LONG = 1.0  # seconds of timing, after which nothing is timed again
BUDGET = 8.0  # seconds of timing, after which sizes of a step are not timed, but lie on a line
FEW = 8  # rows that show what looking back costs where the time is spent
# Doubts are variances, in units of the noise of one step. The pace of memory changes within a few
# steps, that of everything together more slowly. What was timed hardly changes, but it may be wrong
# where it was not seen for long.
PACE, PACE_DRIFT = 0.25, 0.05  # of reading
COMMON, COMMON_DRIFT = 0.05, 5e-3  # of everything together
TIMED, TIMED_DRIFT, TIMED_MOST = 0.06, 5e-4, 0.25
OVERLAP = 3  # of reading and computing: powers are added, 1 adds seconds, infinity takes the larger
OUTLIER = 2.0  # a step that took this many times longer than expected was held up by others


def timed(work: Callable[..., object], *arguments: int) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


class Stopwatch:
    """Times work, and adds up what that took in `spent` seconds. `budget` bounds the first round:
    points beyond it are left out."""

    def __init__(self, work: Callable[..., object], budget: float = math.inf) -> None:
        self._work, self._budget, self.spent = work, budget, 0.0

    @property
    def exhausted(self) -> bool:
        return self.spent > self._budget

    def time(self, *point: int) -> float:
        seconds = timed(self._work, *point)
        self.spent += seconds
        return seconds

    def best_of(self, points: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
        """Return the least seconds of `work(*point)` for each of `points`. All are timed in turns:
        REPEATS times, or until that has taken LONG; the first one at least once."""
        best: dict[tuple[int, ...], float] = {}
        for _ in range(REPEATS):
            for point in points:
                if point not in best and best and self.exhausted:
                    continue
                best[point] = min(best.get(point, math.inf), self.time(*point))
            if self.spent > LONG:
                break
        return best


@dataclass(eq=False)
class StepCost:
    """Seconds of a step by its rows: known on a small grid, linear between and beyond. Every
    request beyond the first adds `per_request`. The rows of a request, of its prompt or not, add
    `per_key` for each token before them, whose keys and values are read, and `per_pair` for each of
    these and each row but the first.

    `shape` holds the seconds of each size at the pace at which they were timed: then the weights
    took shape[0] to read. Today that takes `_reading` times as long, and everything `_factor`
    times.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    rows: list[int]
    shape: list[Annotated[float, Field(gt=0, lt=1e4)]]
    per_request: NonNegativeFloat = 0.0
    per_key: NonNegativeFloat = 0.0
    per_pair: NonNegativeFloat = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError for rows that are no grid."""
        grid = sorted(set(self.rows))
        if not grid or list(self.rows) != grid or len(grid) != len(self.shape):
            raise ValueError("not a grid of rows")
        self.shape, self._factor, self._reading = list(self.shape), 1.0, 1.0
        self._timed_reading = self.shape[0]
        self._doubts, self._looking_doubt = [TIMED] * len(grid), TIMED
        self._reading_doubt, self._factor_doubt = PACE, COMMON
        self._seconds: list[float] | None = None

    @property
    def seconds(self) -> list[float]:
        """At each of `rows`. More rows never cost less; a dip in what was measured is noise."""
        seconds = self._seconds  # the engine's thread may observe a step while others read
        if seconds is None:
            today = map(self._today, self.shape)
            seconds = [self._factor * most for most in accumulate(today, max)]
            self._seconds = seconds
        return seconds

    def _today(self, seconds: float) -> float:
        """Return what a size takes at today's pace of reading that took `seconds` when timed."""
        if self._reading == 1.0:
            return seconds
        change = self._timed_reading**OVERLAP * (self._reading**OVERLAP - 1)
        floor = seconds * min(1.0, self._reading)
        return float(max(seconds**OVERLAP + change, floor**OVERLAP) ** (1 / OVERLAP))

    @classmethod
    def measure(
        cls,
        forward: Callable[..., object],
        most: int,
        widest: int = 1,
        *,
        context: int = 0,
        budget: float = math.inf,
    ) -> StepCost:
        """Time `forward(rows, requests)` over the grid up to `most` rows and `widest` requests, and
        `forward(rows, 1, start)` for rows that follow `start` tokens, up to `context` in all. Once
        `budget` seconds are spent, further sizes are not timed: they lie on lines between the
        others, and the steps themselves correct them."""
        watch, alone = Stopwatch(forward, budget), [rows for rows in GRID if rows <= most]
        last = alone[-1]
        first = watch.time(last, 1)  # the only timing of this size where the budget is small
        order = [rows for rows in FIRST if rows < last]
        order += [rows for rows in alone if rows not in order]
        points = [(rows, 1) for rows in order]
        points += [(rows, count) for count, rows in WIDE if count <= widest and rows <= most]
        best = {(last, 1): first, **watch.best_of(points)}
        timed_rows = [rows for rows in alone if (rows, 1) in best]
        for fewer, more in reversed([*pairwise(timed_rows)]):
            if best[fewer, 1] > best[more, 1] and not watch.exhausted:  # others held it up
                best[fewer, 1] = min(best[fewer, 1], watch.time(fewer, 1))
        coarse = cls(timed_rows, [best[rows, 1] for rows in timed_rows])
        cost = cls(alone, [best.get((rows, 1), coarse(rows)) for rows in alone])
        wide = [(count - 1, seconds - cost(rows)) for (rows, count), seconds in best.items()]
        weight = sum(count * count for count, _ in wide) or 1
        cost.per_request = max(0.0, sum(count * extra for count, extra in wide) / weight)
        rows = min(last, FEW) if watch.exhausted else last
        start = min(FAR, context - last)
        if start >= NEAREST and rows > 1:
            far = Stopwatch(forward).best_of([(1, 1, start), (rows, 1, start)])
            reading = max(0.0, far[1, 1, start] - cost(1))
            attending = max(0.0, far[rows, 1, start] - cost(rows) - reading)
            cost.per_key, cost.per_pair = reading / start, attending / _pairs(start, rows)
        return cost

    def rescale(self, pace: float) -> None:
        """A single row takes `pace` times as long as it did when it was timed: memory is so much
        slower."""
        self._reading *= pace
        self._seconds = None

    def observe(self, rows: int, seconds: float, requests: int = 1, back: float = 0.0) -> None:
        """A step of `rows` rows took `seconds`, the engine's own work included, drafting not.

        A Kalman filter, without what ties its parts together: the paces, the sizes of a step, and
        looking back. The news goes into each of them by what it moves and by how much it is in
        doubt. So a size that comes after many others takes most of its news for its own, and the
        pace of reading takes what steps of few rows say.
        """
        if rows > self.rows[-1]:
            return
        shape, doubts = self.shape, self._doubts
        above = bisect_left(self.rows, rows)
        below = above if self.rows[above] == rows else above - 1
        share = (rows - self.rows[below]) / (self.rows[above] - self.rows[below] or 1)
        fewer, more = self._today(shape[below]), self._today(shape[above])
        own = fewer + share * (more - fewer) + (requests - 1) * self.per_request + back
        news = min(max(seconds / (self._factor * own), 1 / OUTLIER), OUTLIER) - 1
        looked = back / own
        # By how many percent the whole changes with each part's percent.
        lower = (1 - looked) * (1 - share) * (shape[below] / fewer) ** OVERLAP
        upper = (1 - looked) * share * (shape[above] / more) ** OVERLAP
        read = looked + (1 - looked) * self._read_share(rows)
        lower_gain, upper_gain = lower * doubts[below], upper * doubts[above]
        factor_gain, reading_gain = self._factor_doubt, read * self._reading_doubt
        looked_gain = looked * self._looking_doubt
        doubt = 1 + factor_gain + read * reading_gain
        doubt += lower * lower_gain + upper * upper_gain + looked * looked_gain
        news /= doubt
        self._factor *= 1 + factor_gain * news
        self._reading *= 1 + reading_gain * news
        shape[below] *= 1 + lower_gain * news
        shape[above] *= 1 + upper_gain * news
        self.per_key *= 1 + looked_gain * news
        self.per_pair *= 1 + looked_gain * news
        self._factor_doubt += COMMON_DRIFT - factor_gain**2 / doubt
        reading = self._reading_doubt - reading_gain**2 / doubt
        self._reading_doubt = min(PACE, reading + PACE_DRIFT)
        doubts[below] -= lower_gain**2 / doubt
        doubts[above] -= upper_gain**2 / doubt
        looking = self._looking_doubt - looked_gain**2 / doubt
        self._looking_doubt = min(TIMED_MOST, looking + TIMED_DRIFT)
        self._follow(below, above)
        self._doubts = [min(TIMED_MOST, each + TIMED_DRIFT) for each in doubts]
        self._seconds = None

    def _read_share(self, rows: int) -> float:
        """Return the share of the seconds of so many rows that changes with the pace of reading."""
        weights = self._factor * self._reading * self._timed_reading
        return min(1.0, (weights / self._by_rows(rows)) ** OVERLAP)

    def _follow(self, below: int, above: int) -> None:
        """Move the sizes that are more in doubt than these two: more rows never cost less."""
        shape, doubts = self.shape, self._doubts
        fewer = below - 1
        while fewer >= 0 and shape[fewer] > shape[below] and doubts[fewer] > doubts[below]:
            shape[fewer] = shape[below]
            fewer -= 1
        more = above + 1
        while more < len(shape) and shape[more] < shape[above] and doubts[more] > doubts[above]:
            shape[more] = shape[above]
            more += 1

    def __call__(self, rows: int, requests: int = 1, back: float = 0.0) -> float:
        """Return the seconds of a step of so many rows and requests. `back` is the sum of what
        looking_back() says of its requests."""
        beside = (requests - 1) * self.per_request + back
        return self._by_rows(rows) + self._factor * beside

    def looking_back(self, start: int, count: int) -> float:
        """Return what `count` rows of a request after `start` tokens add by looking back: seconds
        at the table's own pace, but for that of reading, which is today's."""
        return self._reading * self.per_key * start + self.attending(start, count)

    def reading(self, start: int) -> float:
        """Return what the first row after `start` tokens adds: seconds, at today's pace."""
        return self._factor * self._reading * self.per_key * start

    def attending(self, start: int, count: int) -> float:
        """Return the part of what looking_back() says that grows with the rows."""
        return self.per_pair * _pairs(start, count)

    def upwards(
        self, rows: int, count: int, requests: int, back: float = 0.0, row_back: float = 0.0
    ) -> list[float]:
        """Seconds of steps of `rows` to `rows + count` rows: [count + 1]. They look back for
        `back`, and for `row_back` with each row more."""
        found: list[float] = []
        while len(found) <= count:
            start = rows + len(found)
            above, slope = self._segment(start)
            end = rows + count
            if start <= self.rows[above]:
                end = min(end, self.rows[above])
            first = self(start, requests, back + len(found) * row_back)
            slope += self._factor * row_back
            found += [first + slope * more for more in range(end - start + 1)]
        return found

    def row_seconds(self, rows: int, count: int, row_back: float = 0.0) -> float:
        """Seconds that each of `count` more rows adds to a step of `rows`, on average. Each looks
        back for `row_back`."""
        count = max(1, count)
        each = (self._by_rows(rows + count) - self._by_rows(rows)) / count
        return each + self._factor * row_back

    def _by_rows(self, rows: int) -> float:
        above, slope = self._segment(rows)
        return self.seconds[above] + slope * (max(rows, self.rows[0]) - self.rows[above])

    def _segment(self, rows: int) -> tuple[int, float]:
        """The end of the line that `rows` lies on, as an index, and the line's slope.

        Beyond the grid the line is that from half of the last size to the last: what rows cost
        that share a tile with others says little about what more tiles cost. These rows are
        arithmetic, whatever the pace of reading.
        """
        seconds = self.seconds
        if len(seconds) == 1:
            return 0, 0.0
        above = min(max(1, bisect_left(self.rows, rows)), len(seconds) - 1)
        below = above - 1
        rise = seconds[above] - seconds[below]
        if rows > self.rows[-1]:
            below = max(0, bisect_right(self.rows, self.rows[-1] // 2) - 1)
            rise = self._factor * (max(self.shape) - max(self.shape[: below + 1]))
        return above, rise / (self.rows[above] - self.rows[below])

    def rows_within(
        self,
        seconds: float,
        rows: int,
        most: int,
        *,
        requests: int = 1,
        start: int = 0,
        back: float = 0.0,
    ) -> int:
        """Return how many rows, up to `most`, a step of `rows` rows can have beside them within
        `seconds`. They are those of a prompt after its first `start` tokens; to read these takes
        the same time for one row as for many, and is not counted."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self(rows + middle, requests, back + self.attending(start, middle)) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low


def _pairs(start: int, count: int) -> float:
    """Return how many pairs of a row and a token before it there are for all rows of a chunk but
    the first."""
    return max(0, count - 1) * (start + count / 2)
