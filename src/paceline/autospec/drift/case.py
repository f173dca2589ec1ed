"""All that one assessment looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.autospec.drift.cells import HOUR
from paceline.autospec.drift.evidence import DriftEvidence
from paceline.autospec.drift.ledger import Ledger
from paceline.autospec.drift.periods import DriftPeriods
from paceline.autospec.drift.worth import Speedup
from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.sums import FloatArray, IntArray, R, divide


@dataclass(frozen=True, slots=True)
class DriftCase:
    """The cohorts of one server with their evidence, what was done before, and the policy."""

    cohorts: Sequence[str]
    evidence: DriftEvidence
    periods: DriftPeriods
    ledger: Ledger
    policy: AutospecPolicy
    speedup: Speedup | None = None

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self.periods.now * HOUR

    @property
    def shares(self) -> FloatArray:
        """The share of each cohort among the rounds of the last days."""
        rounds = self.periods.current[R]
        return divide(rounds, rounds.sum(), 0.0)

    def labels(self, rows: IntArray) -> tuple[str, ...]:
        """Return the labels of some rows."""
        return tuple(self.cohorts[row] for row in rows)

    def mean(self, values: FloatArray, rows: IntArray) -> float:
        """Return the mean of rows' values, weighted by their rounds."""
        return float(np.average(values[rows], weights=np.maximum(self.evidence.rounds[rows], 1e-9)))
