"""The time of one forward: the sum over its components of the longer of computing and loading.

t = Σ max(FLOP / peak, bytes / bandwidth), then whatever the calibration adds. Components do not
overlap with each other; within one, arithmetic and loading do, as far as the calibration says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.core.errors import InvalidRequest
from paceline.roofline.architecture import Architecture
from paceline.roofline.communication import exchanged
from paceline.roofline.hardware import Hardware
from paceline.roofline.work import Options, Work, Workload

__all__ = ["Options", "StepTime", "WorkTable", "Workload", "forward_time", "works"]


@dataclass(frozen=True)
class StepTime:
    """Seconds of one forward, in all and by component; `overhead` is what is no component's."""

    total: float
    components: dict[str, float]


@dataclass(frozen=True)
class WorkTable:
    """Works as arrays of one shape, in seconds at peak and at full bandwidth: what a calibration
    is applied to."""

    names: tuple[str, ...]
    kind: np.ndarray
    compute: np.ndarray
    memory: np.ndarray
    rows: np.ndarray
    fixed: np.ndarray
    count: np.ndarray

    @classmethod
    def of(cls, listed: list[Work], hardware: Hardware) -> WorkTable:
        return cls(
            names=tuple(work.name for work in listed),
            kind=np.array([work.kind_index for work in listed]),
            compute=np.array([work.flops / hardware.peak_of(work.precision) for work in listed]),
            memory=np.array([work.bytes / hardware.memory_bandwidth for work in listed]),
            rows=np.array([max(work.rows, 1.0) for work in listed]),
            fixed=np.array([work.seconds for work in listed]),
            count=np.array([float(work.copies) for work in listed]),
        )

    @classmethod
    def joined(cls, tables: Sequence[WorkTable]) -> WorkTable:
        names = tuple(name for table in tables for name in table.names)
        columns = ("kind", "compute", "memory", "rows", "fixed", "count")
        arrays = {
            column: np.concatenate([getattr(table, column) for table in tables])
            for column in columns
        }
        return cls(names, **arrays)


def works(
    architecture: Architecture, hardware: Hardware, workload: Workload, options: Options
) -> list[Work]:
    """What each component asks of one device, and what devices exchange."""
    each = math.ceil(workload.batch / options.data_parallel)
    load = replace(workload, batch=each)
    found = []
    for count, part in architecture.components():
        found += [work._replace(copies=count) for work in part.work(load, workload, options)]
    return found + exchanged(architecture, hardware, load, workload, options)


def forward_time(
    architecture: Architecture,
    hardware: Hardware,
    workload: Workload,
    options: Options | None = None,
) -> StepTime:
    """Seconds of one forward. Raises InvalidRequest for a context that the model does not have."""
    options = options or Options()
    reach = architecture.max_context
    if reach and workload.context > reach:
        expected = f"at most the {reach} tokens of {architecture.name}"
        raise InvalidRequest("context", workload.context, expected)
    table = WorkTable.of(works(architecture, hardware, workload, options), hardware)
    calibration = options.calibration
    seconds = calibration.seconds(table.kind, table.compute, table.memory, table.rows)
    seconds = (seconds + table.fixed) * table.count
    components: dict[str, float] = {}
    for name, value in zip(table.names, seconds.tolist(), strict=True):
        components[name] = components.get(name, 0.0) + value
    rows = workload.rows / options.data_parallel
    batch = workload.batch / options.data_parallel
    components["overhead"] = calibration.overhead(batch, rows, architecture.depth)
    return StepTime(sum(components.values()), components)
