"""Step times of many measured points at once, under one calibration after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.roofline.architecture import Architecture
from paceline.roofline.calibration import Calibration
from paceline.roofline.cost import Options, Workload, WorkTable, works
from paceline.roofline.hardware import Hardware
from paceline.roofline.points import Point


@dataclass(frozen=True)
class Case:
    """Points of one model on one device, and how its forwards were run (the calibration of
    `options` is not used)."""

    points: Sequence[Point]
    architecture: Architecture
    hardware: Hardware
    options: Options = field(default_factory=Options)


class StepTimes:
    """Step times of many points at once, for one calibration after another."""

    def __init__(self, cases: Sequence[Case]) -> None:
        pairs = [(case, point) for case in cases for point in case.points]
        share = np.array([case.options.data_parallel for case, _ in pairs])
        self.depth = np.array([case.architecture.depth for case, _ in pairs])
        self.batch = np.array([point.batch for _, point in pairs]) / share
        self.rows = np.array([point.batch * point.rows for _, point in pairs]) / share
        self.drafted = np.array([float(point.draft_length) for _, point in pairs])
        self._whole = _stacked(pairs, single=False)
        self._single = _stacked(pairs, single=True) if self.drafted.any() else None

    def __call__(self, calibration: Calibration, draft_cost: float = 0.0) -> np.ndarray:
        """Seconds [points], case after case."""
        seconds = self._step(self._whole, calibration, self.rows)
        if self._single is not None and draft_cost:
            plain = self._step(self._single, calibration, self.batch)
            seconds = seconds + draft_cost * self.drafted * plain
        return seconds

    def _step(
        self, stacked: tuple[WorkTable, np.ndarray], calibration: Calibration, rows: np.ndarray
    ) -> np.ndarray:
        table, owner = stacked
        each = calibration.seconds(table.kind, table.compute, table.memory, table.rows)
        each = (each + table.fixed) * table.count
        total = np.bincount(owner, weights=each, minlength=len(self.batch))
        return total + calibration.overhead(self.batch, rows, self.depth)


def _stacked(pairs: Sequence[tuple[Case, Point]], *, single: bool) -> tuple[WorkTable, np.ndarray]:
    """All points' works in one table, and whose each is."""
    tables, owner = [], []
    for index, (case, point) in enumerate(pairs):
        load = Workload(point.batch, 1 if single else point.rows, point.context)
        own = works(case.architecture, case.hardware, load, case.options)
        tables.append(WorkTable.of(own, case.hardware))
        owner += [index] * len(own)
    return WorkTable.joined(tables), np.array(owner)
