"""Step times of many measured points at once, under one calibration after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.roofline.architecture.work import Workload
from paceline.roofline.cost.deployment import Deployment, WorkTable
from paceline.roofline.device import Calibration
from paceline.roofline.fit.points import MeasuredStep


@dataclass(frozen=True)
class Case:
    """Measured steps of one deployment."""

    points: Sequence[MeasuredStep]
    deployment: Deployment


class StepTimes:
    """Predicted times of the points of several cases, for one calibration after another."""

    def __init__(self, cases: Sequence[Case]) -> None:
        pairs = [(case.deployment, point) for case in cases for point in case.points]
        forwards = [
            (deployment, Workload(point.batch, point.rows, point.context))
            for deployment, point in pairs
        ]
        self.drafted = np.array([float(point.draft_length) for _, point in pairs])
        self.table = WorkTable.of(forwards)
        self._plain = None
        if self.drafted.any():
            self._plain = WorkTable.of(
                [(deployment, replace(load, rows_per_request=1)) for deployment, load in forwards]
            )

    def __call__(self, calibration: Calibration, draft_cost: float = 0.0) -> np.ndarray:
        """Seconds [points], case after case. Each drafted token takes `draft_cost` of a step of
        one row."""
        seconds = self.table.seconds(calibration)
        if self._plain is not None and draft_cost:
            seconds = seconds + draft_cost * self.drafted * self._plain.seconds(calibration)
        return seconds
