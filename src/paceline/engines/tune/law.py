"""Seconds of a step by its requests and rows, learned from a handful of measured steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from paceline.engines.tune.steps import Numbers

SPARE = 2  # points beyond the unknowns that a knee needs: it is one unknown more
WORTH = 0.5  # a knee has to bring the squared error down to this share of the straight line's


class Point(NamedTuple):
    """A number of requests that decode together, and the draft length of each."""

    requests: int
    draft_len: int

    @property
    def rows(self) -> int:
        """Rows of the target's step: each request's draft, and its last token before that."""
        return self.requests * (self.draft_len + 1)


@dataclass(frozen=True, slots=True)
class StepLaw:
    """base + per_request × requests + per_row × rows + beyond × the rows past `knee`.

    Up to a knee a step is bound by the weights that it reads, and rows are nearly free; beyond it
    by arithmetic. No part is negative.
    """

    base: float
    per_request: float
    per_row: float
    beyond: float = 0.0
    knee: float = 0.0

    @classmethod
    def fit(cls, seconds: Mapping[Point, float]) -> StepLaw:
        """Fit relative errors by least squares. `seconds` has at least one point."""
        points = list(seconds)
        times = np.array([seconds[point] for point in points])
        straight, error = _solve(points, times, None)
        best = straight
        if len(points) >= len(_columns(points, 0.0)[0]) + SPARE:
            error *= WORTH
            for knee in sorted({float(point.rows) for point in points})[1:-1]:
                bent, squares = _solve(points, times, knee)
                if squares < error:
                    best, error = bent, squares
        return best

    def __call__(self, point: Point) -> float:
        return (
            self.base
            + self.per_request * point.requests
            + self.per_row * point.rows
            + self.beyond * max(0.0, point.rows - self.knee)
        )


def _solve(points: list[Point], times: Numbers, knee: float | None) -> tuple[StepLaw, float]:
    """Return the law with the least sum of squared relative errors, and that sum."""
    columns = _columns(points, knee) / times[:, None]
    factors, squares = _non_negative(columns, np.ones(len(points)))
    return StepLaw(*factors, **({} if knee is None else {"knee": knee})), squares


def _columns(points: list[Point], knee: float | None) -> Numbers:
    rows = [[1.0, point.requests, point.rows] for point in points]
    if knee is not None:
        for row, point in zip(rows, points, strict=True):
            row.append(max(0.0, point.rows - knee))
    return np.array(rows)


def _non_negative(columns: Numbers, values: Numbers) -> tuple[list[float], float]:
    """Return the factors, none below zero, of the least squares, and the sum of squares.

    The few columns allow to try which of them are zero.
    """
    count = columns.shape[1]
    best, least = [0.0] * count, float(values @ values)
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            part = columns[:, chosen]
            factors, _, rank, _ = np.linalg.lstsq(part, values, rcond=None)
            error = part @ factors - values
            squares = float(error @ error)
            if rank == size and factors.min() >= 0 and squares < least:
                best, least = [0.0] * count, squares
                for index, factor in zip(chosen, factors, strict=True):
                    best[index] = float(factor)
    return best, least
