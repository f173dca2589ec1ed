"""What traces say of each drafter in each cohort, as sums by hour or minute that are read once.

The hours that are over are kept; the present one is read anew. A row is a cohort and a drafter, so
that a canary can be left out of its cohort's curve, and has a cell of its own in the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paceline.autospec.drift.cells import (
    COLUMNS,
    DAY,
    HOUR,
    HourCells,
    RequestColumns,
)
from paceline.autospec.loop.change import SETTLED_SECONDS
from paceline.autospec.loop.observe import NAMED
from paceline.autospec.sums import MOMENTS, BoolArray, FloatArray, R, moments
from paceline.core.cohorts import PARTS, Cohort
from paceline.dataset.traces.folder import is_traces
from paceline.dataset.traces.reader import Selection, request_tables

KEPT_HOURS = 90 * 24  # as long as a server keeps traces unless it is told otherwise
KEPT_MINUTES = 180
MINUTE = 60.0
SPEED_CELLS = 7 * 24
MOST_ROWS = 400  # cohorts and drafters with the most rounds, of all that were ever seen
BETWEEN = "\x1f"  # the parts of a row's label; no name has it
READ = (
    *PARTS, "time", "drafter", "route", "held_back", "spec_off", "accepted", "draft_rounds",
    "draft_bound", "seconds", "ar_seconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TracedSums:
    """Sums by hour, or by another unit of time, with a row for each cohort and drafter.

    unit   seconds of a cell
    kept   cells that are kept, the latest
    al     tokens by rounds with a draft
    speed  seconds without drafts (by the cost table) by seconds, of the last cells
    until  the cell behind the last one, counted since the epoch
    """

    unit: float = HOUR
    kept: int = KEPT_HOURS
    al: HourCells = field(default_factory=HourCells)
    speed: HourCells = field(default_factory=HourCells)
    until: int = 0

    def cell_of(self, time: float) -> int:
        """Return the cell that a time lies in."""
        return int(time // self.unit)

    def with_cells(self, folder: Path, until: int, now: float) -> TracedSums:
        """Return the sums with the cells from here to `until`, or to `now` where that is earlier.
        Raises InvalidRequest for a damaged file."""
        first = max(self.until, until - self.kept)
        since, end = first * self.unit, min(until * self.unit, now)
        al, speed = self.al, self.speed
        for day in range(int(since // DAY), math.ceil(end / DAY)):
            of_day = max(day * DAY, since), min((day + 1) * DAY, end)
            more_al, more_speed = _sums(folder, *of_day, self.unit)
            al, speed = al + more_al, speed + more_speed
        al = _bounded(al.since(until - self.kept))
        speed = _bounded(speed.since(until - SPEED_CELLS))
        return TracedSums(self.unit, self.kept, al, speed, until)

    def by_cohort(self, without: Collection[str] = ()) -> HourCells:
        """Return the sums of cohorts, without those of some drafters."""
        rows = [label.split(BETWEEN) for label in self.al.cohorts]
        kept = {n: cohort for n, (cohort, drafter) in enumerate(rows) if drafter not in without}
        cohorts = list(dict.fromkeys(kept.values()))
        sums = np.zeros((COLUMNS, len(cohorts), self.al.sums.shape[2]))
        for row, cohort in kept.items():
            sums[:, cohorts.index(cohort)] += self.al.sums[:, row]
        return HourCells(tuple(cohorts), self.al.start, sums)


@dataclass(frozen=True, slots=True)
class TracedTraffic:
    """The traces of a folder: the cells that are over, and those with the present one."""

    over: TracedSums = field(default_factory=TracedSums)
    whole: TracedSums = field(default_factory=TracedSums)
    until: float = 0.0

    @classmethod
    def by_minute(cls) -> TracedTraffic:
        """Return traffic that is read by the minute, of the last hours."""
        nothing = TracedSums(MINUTE, KEPT_MINUTES)
        return cls(nothing, nothing)

    def read_on(self, folder: Path, now: float) -> TracedTraffic:
        """Return the traffic until now. Raises InvalidRequest for a damaged file."""
        if not is_traces(folder):  # nothing was written yet
            return TracedTraffic(self.over, self.over, now)
        over, cell_of = self.over, self.over.cell_of
        over = over.with_cells(folder, cell_of(now - SETTLED_SECONDS), now)
        return TracedTraffic(over, over.with_cells(folder, cell_of(now) + 1, now), now)


def row_label(cohort: str, drafter: str) -> str:
    """Return the label of a row."""
    return f"{cohort}{BETWEEN}{drafter}"


def _sums(folder: Path, since: float, until: float, unit: float) -> tuple[HourCells, HourCells]:
    al, speed = HourCells(), HourCells()
    for table in request_tables(folder, Selection(since=since, until=until), READ):
        for columns in _of_drafters(table, HOUR / unit):
            al += HourCells.of(columns.al)
            speed += columns.speed()
    return al, speed


@dataclass(frozen=True, slots=True)
class _DrafterColumns:
    """Requests of drafters. `plain` is the seconds that they would have taken without drafts."""

    al: RequestColumns
    seconds: FloatArray
    plain: FloatArray

    def speed(self) -> HourCells:
        timed: BoolArray = (self.seconds > 0) & (self.plain > 0)
        if not timed.any():
            return HourCells()
        values = np.zeros((COLUMNS, int(timed.sum())))
        values[:MOMENTS] = moments(self.plain[timed], self.seconds[timed])
        return HourCells.summed(self.al.cohorts, self.al.cohort[timed], self.al.time[timed], values)


def _of_drafters(table: Any, stretch: float) -> Iterator[_DrafterColumns]:
    """Yield the requests of a table that say something of the drafter that was chosen for them,
    with their times stretched, so that a unit of time is an hour. No loop over rows: it would hold
    the interpreter's lock, which serving needs."""
    import pyarrow.compute as compute

    keep = compute.and_(compute.is_valid(table["drafter"]), compute.invert(table["spec_off"]))
    keep = compute.and_(keep, compute.invert(compute.fill_null(table["held_back"], False)))
    keep = compute.and_(keep, compute.not_equal(table["route"], NAMED))
    table = table.filter(compute.fill_null(keep, False)).combine_chunks()
    if not table.num_rows:
        return
    parts = [table[name] for name in (*PARTS, "drafter")]
    joined = compute.binary_join_element_wise(*parts, BETWEEN).combine_chunks()
    encoded = joined.dictionary_encode()
    labels = [text.split(BETWEEN) for text in encoded.dictionary.to_pylist()]

    def column(name: str) -> FloatArray:
        values: FloatArray = table[name].to_numpy().astype(float)
        return values

    yield _DrafterColumns(
        RequestColumns(
            cohorts=[row_label(Cohort(*cohort).label, drafter) for *cohort, drafter in labels],
            cohort=encoded.indices.to_numpy().astype(np.int64),
            time=column("time") * stretch,
            accepted=column("accepted"),
            rounds=column("draft_rounds"),
            longest=column("draft_bound"),
        ),
        column("seconds"),
        column("ar_seconds"),
    )


def _bounded(cells: HourCells) -> HourCells:
    """Return the rows that have anything, at most so many of them."""
    rounds = cells.sums[R].sum(1)
    rows = np.argsort(-rounds, kind="stable")[:MOST_ROWS]
    rows = np.sort(rows[rounds[rows] > 0])
    return HourCells(tuple(cells.cohorts[row] for row in rows), cells.start, cells.sums[:, rows])
