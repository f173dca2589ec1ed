"""A model on devices, and the time of its forwards: for each component the longer of computing and
loading.

t = Σ max(FLOP / peak, bytes / bandwidth), then whatever the calibration adds. Components do not
overlap with each other; within one, arithmetic and loading do, as far as the calibration says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from paceline.core.errors import InvalidRequest
from paceline.roofline.architecture import Architecture
from paceline.roofline.architecture.work import Options, Work, Workload
from paceline.roofline.cost.communication import exchanges
from paceline.roofline.device import IDEAL, WIDER, Calibration, Hardware


@dataclass(frozen=True)
class StepTime:
    """Seconds of one forward, in all and by component; `overhead` belongs to no component."""

    total: float
    components: dict[str, float]


@dataclass(frozen=True)
class Deployment:
    """A model on devices, and the options that its forwards run with."""

    architecture: Architecture
    hardware: Hardware
    options: Options = field(default_factory=Options)

    @property
    def devices(self) -> int:
        return self.options.devices

    def running(self, architecture: Architecture) -> Deployment:
        """The same devices and options with another model, as that of a drafter."""
        return replace(self, architecture=architecture)

    @cached_property
    def flops(self) -> dict[str, float]:
        """FLOP/s of one device by precision."""
        return {precision: self.hardware.peak_of(precision) for precision in WIDER}

    def works(self, load: Workload) -> list[tuple[int, Work]]:
        """The work of each component on one device, and the exchanges between devices, each with
        its count."""
        share = math.ceil(load.batch / self.options.data_parallel)
        group = Workload(share, load.rows_per_request, load.context)
        parts = self.architecture.components()
        works = [(count, part.work(group, load, self.options)) for count, part in parts]
        return works + exchanges(self.architecture, self.hardware, group, load, self.options)

    def forward_time(self, load: Workload, calibration: Calibration = IDEAL) -> StepTime:
        """Time one forward. Raises InvalidRequest for a context that the model does not have."""
        reach = self.architecture.max_context
        if reach and load.context > reach:
            expected = f"at most the {reach} tokens of {self.architecture.name}"
            raise InvalidRequest("context", load.context, expected)
        table = WorkTable.of([(self, load)])
        components: dict[str, float] = {}
        seconds = table.work_seconds(calibration).tolist()
        for name, value in zip(table.names, seconds, strict=True):
            components[name] = components.get(name, 0.0) + value
        components["overhead"] = float(table.overhead(calibration)[0])
        return StepTime(sum(components.values()), components)


@dataclass(frozen=True)
class WorkTable:
    """Many forwards as arrays: calibrations are applied to them one after another.

    By work: the `owner` [works] is the index of its forward; `compute` and `memory` are seconds at
    peak and at full bandwidth. By forward, of one data-parallel group: `batch`, `tokens`, `depth`,
    and `states`, the layers with recurrent states that verify drafts.
    """

    names: tuple[str, ...]
    owner: np.ndarray
    kind: np.ndarray
    compute: np.ndarray
    memory: np.ndarray
    rows: np.ndarray
    fixed: np.ndarray
    copies: np.ndarray
    batch: np.ndarray
    tokens: np.ndarray
    depth: np.ndarray
    states: np.ndarray

    @classmethod
    def of(cls, forwards: Sequence[tuple[Deployment, Workload]]) -> WorkTable:
        by_forward = [deployment.works(load) for deployment, load in forwards]
        counts = [len(listed) for listed in by_forward]
        works = [work for listed in by_forward for _, work in listed]
        deployments = [deployment for deployment, _ in forwards]
        owner = np.repeat(np.arange(len(forwards)), counts)
        flops = [
            deployment.flops[work.precision]
            for deployment, listed in zip(deployments, by_forward, strict=True)
            for _, work in listed
        ]
        bandwidth = _array(each.hardware.memory_bandwidth for each in deployments)
        groups = _array(each.options.data_parallel for each in deployments)
        return cls(
            names=tuple(work.name for work in works),
            owner=owner,
            kind=np.array([work.kind_index for work in works], dtype=int),
            compute=_array(work.flops for work in works) / flops,
            memory=_array(work.bytes for work in works) / bandwidth[owner],
            rows=np.maximum(_array(work.rows for work in works), 1.0),
            fixed=_array(work.seconds for work in works),
            copies=_array(copies for listed in by_forward for copies, _ in listed),
            batch=_array(load.batch for _, load in forwards) / groups,
            tokens=_array(load.rows for _, load in forwards) / groups,
            depth=_array(each.architecture.depth for each in deployments),
            states=_array(
                each.architecture.state_layers * (load.rows_per_request > 1)
                for each, load in forwards
            ),
        )

    def work_seconds(self, calibration: Calibration) -> np.ndarray:
        """Seconds of each work in all its copies [works]."""
        seconds = calibration.seconds(self.kind, self.compute, self.memory, self.rows)
        in_all: np.ndarray = (seconds + self.fixed) * self.copies
        return in_all

    def overhead(self, calibration: Calibration) -> np.ndarray:
        """Seconds of each forward that belong to no component [forwards]."""
        return calibration.overhead(self.batch, self.tokens, self.depth, self.states)

    def seconds(self, calibration: Calibration) -> np.ndarray:
        """Seconds of each forward [forwards]."""
        works: np.ndarray = np.bincount(self.owner, self.work_seconds(calibration), len(self.batch))
        in_all: np.ndarray = works + self.overhead(calibration)
        return in_all


def _array(values: Iterable[float]) -> np.ndarray:
    return np.fromiter(values, dtype=float)
