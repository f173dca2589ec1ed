"""What many simulated runs show together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.autospec.drift.report import DriftKind
from paceline.autospec.simulate.run import SimulatedRun


@dataclass(frozen=True, slots=True)
class SimulationSummary:
    """Figures over runs.

    retrains        number of runs by how many trainings were decided in each
    too_early       runs with a training before the event
    delays          days from the event to the training that it led to: median and longest
    found           number of runs that reported each kind of change
    control_a_day   alarms a day of ADWIN on the raw global stream; None where it did not run
    """

    runs: int
    retrains: dict[int, int]
    too_early: int
    median_delay: float | None
    longest_delay: float | None
    found: dict[str, int]
    control_a_day: float | None

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def summarise(runs: Sequence[SimulatedRun], days: int, *, control: bool) -> SimulationSummary:
    """Return the figures of runs over so many days."""
    delays = [day - run.event for run in runs if run.event is not None for day in run.retrains[:1]]
    after = [delay for delay in delays if delay >= 0]
    found = Counter(kind for run in runs for kind in {report.kind for _, report in run.decisions})
    return SimulationSummary(
        runs=len(runs),
        retrains=dict(sorted(Counter(len(run.retrains) for run in runs).items())),
        too_early=len(delays) - len(after),
        median_delay=float(np.median(after)) if after else None,
        longest_delay=max(after, default=None),
        found={str(kind): found[kind] for kind in DriftKind if found[kind]},
        control_a_day=(
            sum(len(run.control) for run in runs) / (len(runs) * days) if control else None
        ),
    )
