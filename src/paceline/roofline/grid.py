"""The time of many forwards at once: the fast twin of `cost.forward_time`, for whole maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.roofline.architecture import Architecture
from paceline.roofline.cost import Options, Workload, WorkTable, works
from paceline.roofline.hardware import Hardware


def forward_times(
    architecture: Architecture,
    hardware: Hardware,
    workloads: Sequence[Workload],
    tiers: Mapping[str, Options],
) -> dict[str, np.ndarray]:
    """Seconds of each workload's forward under each tier, [workloads].

    `tiers` may differ in their calibration only: what the components have to do is counted once.
    """
    first = next(iter(tiers.values()))
    listed = [works(architecture, hardware, load, first) for load in workloads]
    owner = np.repeat(np.arange(len(workloads)), [len(each) for each in listed])
    table = WorkTable.of([work for each in listed for work in each], hardware)
    batch = np.array([load.batch for load in workloads]) / first.data_parallel
    rows = np.array([load.rows for load in workloads]) / first.data_parallel
    found = {}
    for tier, options in tiers.items():
        calibration = options.calibration
        seconds = calibration.seconds(table.kind, table.compute, table.memory, table.rows)
        summed = np.bincount(owner, (seconds + table.fixed) * table.count, len(workloads))
        # An overhead may be a plain 0, which has no shape of its own.
        found[tier] = summed + calibration.overhead(batch, rows, architecture.depth)  # type: ignore[arg-type]
    return found
