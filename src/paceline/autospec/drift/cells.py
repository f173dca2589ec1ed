"""Hourly sums of each cohort: all that drift is judged by.

Sums add up in any order, so the same requests give the same decisions however they are batched,
before and after a crash. They can be kept, or made again from traces at any time.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.autospec.sums import MOMENTS, FloatArray, IntArray, moments
from paceline.core import InvalidRequest

HOUR = 3600.0
DAY = 24 * HOUR
# columns beside the six moments: rounds of requests that loop, Σ(longest draft + 1)·rounds
LOOPING, CEILING = MOMENTS, MOMENTS + 1
COLUMNS = MOMENTS + 2
AT_CEILING = 0.9  # of γ + 1: an AL above it means that nearly every draft was accepted whole
LEAST_LOOP = 8  # rounds: shorter answers reach the ceiling by chance


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """Requests as columns of equal length.

    cohorts     labels; `cohort` holds indices into them
    time        when the request ended, seconds since the epoch
    accepted    draft tokens that stand, without what a grammar forced
    rounds      rounds with a draft
    longest     longest draft that the request could get (γ)
    """

    cohorts: Sequence[str]
    cohort: IntArray
    time: FloatArray
    accepted: FloatArray
    rounds: FloatArray
    longest: FloatArray

    def __post_init__(self) -> None:
        sizes = {
            name: len(getattr(self, name))
            for name in ("cohort", "time", "accepted", "rounds", "longest")
        }
        if len(set(sizes.values())) > 1:
            raise InvalidRequest("columns", sizes, "columns of equal length")
        if len(self.cohort) and not 0 <= self.cohort.min() <= self.cohort.max() < len(self.cohorts):
            raise InvalidRequest(
                "cohort", int(self.cohort.max()), f"indices below {len(self.cohorts)}"
            )
        if np.any(self.accepted < 0) or np.any(self.rounds < 0):
            raise InvalidRequest("accepted", float(self.accepted.min()), "counts of at least 0")


@dataclass(frozen=True, slots=True)
class HourCells:
    """Sums of requests by cohort and hour: `sums` [COLUMNS, cohorts, hours], from the hour `start`
    (hours since the epoch) on. Tokens are rounds + accepted: the bonus token counts."""

    cohorts: tuple[str, ...] = ()
    start: int = 0
    sums: FloatArray = field(default_factory=lambda: np.zeros((COLUMNS, 0, 0)))

    @property
    def end(self) -> int:
        """The hour behind the last one."""
        return self.start + int(self.sums.shape[2])

    @classmethod
    def of(cls, requests: RequestColumns) -> HourCells:
        """Sum requests. Those without a drafted round say nothing and are left out."""
        drafted = requests.rounds > 0
        if not drafted.any():
            return cls()
        values = summands(
            requests.accepted[drafted], requests.rounds[drafted], requests.longest[drafted]
        )
        times, rows = requests.time[drafted], requests.cohort[drafted]
        return cls.summed(requests.cohorts, rows, times, values)

    @classmethod
    def summed(
        cls, labels: Sequence[str], row: IntArray, time: FloatArray, values: FloatArray
    ) -> HourCells:
        """Sum values [COLUMNS, requests] by hour and by label: `row` has indices of `labels`. There
        is a request at least."""
        hours = (time // HOUR).astype(np.int64)
        start, end = int(hours.min()), int(hours.max()) + 1
        place = row * (end - start) + hours - start
        shape = (len(labels), end - start)
        columns = [
            np.bincount(place, column, shape[0] * shape[1]).reshape(shape) for column in values
        ]
        return cls(tuple(labels), start, np.stack(columns))

    def __add__(self, other: HourCells) -> HourCells:
        """Return the sums of both; cohorts are matched by their labels."""
        if not other.sums.size:
            return self
        if not self.sums.size:
            return other
        cohorts = tuple(dict.fromkeys((*self.cohorts, *other.cohorts)))
        start, end = min(self.start, other.start), max(self.end, other.end)
        sums = np.zeros((COLUMNS, len(cohorts), end - start))
        for cells in (self, other):
            rows = [cohorts.index(label) for label in cells.cohorts]
            sums[:, rows, cells.start - start : cells.end - start] += cells.sums
        return HourCells(cohorts, start, sums)

    def since(self, hour: int) -> HourCells:
        """Return the cells without those before `hour`."""
        first = min(max(0, hour - self.start), self.sums.shape[2])
        return HourCells(self.cohorts, self.start + first, self.sums[:, :, first:])

    def between(self, first: int, end: int, columns: int = COLUMNS) -> FloatArray:
        """Return the sums of the hours [first, end), [columns, cohorts, hours]: the first of the
        columns, and zeros where nothing was seen."""
        out = np.zeros((columns, len(self.cohorts), max(0, end - first)))
        low, high = max(first, self.start), min(end, self.end)
        if low < high:
            seen = self.sums[:columns, :, low - self.start : high - self.start]
            out[:, :, low - first : high - first] = seen
        return out

    def to_bytes(self) -> bytes:
        """Return the cells as bytes that `from_bytes` reads, bit for bit."""
        out = io.BytesIO()
        head = json.dumps({"cohorts": self.cohorts, "start": self.start}).encode()
        np.savez_compressed(out, head=np.frombuffer(head, np.uint8), sums=self.sums)
        return out.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> HourCells:
        """Read what `to_bytes` wrote. Raises InvalidRequest for anything else."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                head, sums = json.loads(stored["head"].tobytes()), stored["sums"]
            cohorts, start = tuple(map(str, head["cohorts"])), int(head["start"])
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidRequest(
                "cells", len(content), f"bytes that to_bytes wrote ({error})"
            ) from None
        if sums.ndim != 3 or sums.shape[:2] != (COLUMNS, len(cohorts)):
            raise InvalidRequest("cells", sums.shape, f"({COLUMNS}, {len(cohorts)}, hours) sums")
        return cls(cohorts, start, sums.astype(float))


def summands(accepted: FloatArray, rounds: FloatArray, longest: FloatArray) -> FloatArray:
    """Return what each request adds to a cell, [COLUMNS, requests]."""
    tokens, ceiling = rounds + accepted, (longest + 1) * rounds
    looping = (tokens >= AT_CEILING * ceiling) & (rounds >= LEAST_LOOP) & (longest > 0)
    extra = np.stack([np.where(looping, rounds, 0.0), ceiling])
    return np.concatenate([moments(tokens, rounds), extra])
