"""Times of whole maps at once: the fast twins of `forward_time` and of every `DrafterCost.time`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.roofline.architecture import Architecture
from paceline.roofline.cost import Options, Workload, WorkTable, works
from paceline.roofline.drafting import Autoregressive, Block, DrafterCost, Fraction
from paceline.roofline.hardware import Hardware

Seconds = Mapping[str, np.ndarray]  # by tier


@dataclass(frozen=True)
class Grid:
    """Batches over contexts. `tiers` may differ in their calibration only: what components have to
    do is counted once for all of them."""

    hardware: Hardware
    loads: tuple[Workload, ...]
    tiers: Mapping[str, Options]

    def forwards(self, architecture: Architecture, rows: Sequence[int]) -> dict[str, np.ndarray]:
        """Seconds of forwards of so many rows a request, [loads, rows]."""
        points = [replace(load, rows_per_request=row) for load in self.loads for row in rows]
        shape = (len(self.loads), len(rows))
        if not points:
            return {tier: np.zeros(shape) for tier in self.tiers}
        first = next(iter(self.tiers.values()))
        listed = [works(architecture, self.hardware, point, first) for point in points]
        owner = np.repeat(np.arange(len(points)), [len(each) for each in listed])
        table = WorkTable.of([work for each in listed for work in each], self.hardware)
        batch = np.array([point.batch for point in points]) / first.data_parallel
        every = np.array([point.rows for point in points]) / first.data_parallel
        depth = np.full(len(points), float(architecture.depth))
        found = {}
        for tier, options in self.tiers.items():
            calibration = options.calibration
            seconds = calibration.seconds(table.kind, table.compute, table.memory, table.rows)
            seconds = (seconds + table.fixed) * table.count
            summed = np.bincount(owner, seconds, len(points))
            found[tier] = (summed + calibration.overhead(batch, every, depth)).reshape(shape)
        return found

    def drafts(
        self, cost: DrafterCost, architecture: Architecture, longest: int, plain: Seconds
    ) -> dict[str, np.ndarray]:
        """Seconds of drafts of 0 … `longest` tokens, [loads, longest + 1]; `plain` is the target's
        step of one row a request, [loads, 1]."""
        lengths = np.arange(longest + 1)
        if isinstance(cost, Fraction):
            passes = np.ceil(lengths / cost.per_block)
            return {tier: cost.cost * plain[tier] * passes for tier in self.tiers}
        if isinstance(cost, Autoregressive | Block):
            inside = self._within_a_step()
            parts = inside._passes(cost, longest)
            return {tier: sum(part[tier] for part in parts) * (lengths > 0) for tier in self.tiers}
        return {
            tier: np.array(
                [
                    [cost.time(int(n), architecture, self.hardware, load, each) for n in lengths]
                    for load in self.loads
                ]
            ).reshape(len(self.loads), -1)
            for tier, each in self.tiers.items()
        }

    def _passes(self, cost: Autoregressive | Block, longest: int) -> list[dict[str, np.ndarray]]:
        """The parts of drafts by length, [loads, longest + 1]; at length 0 without meaning."""
        rows = range(1, longest + 2)
        if isinstance(cost, Block):
            drafted = [max(row - 1, 1) for row in rows]
            return [
                self.forwards(cost.model, rows),
                self.forwards(cost.once, rows),
                self.forwards(cost.head, drafted),
            ]
        lengths = np.arange(longest + 1)
        found = []
        for part in (cost.model, cost.head):
            if part is not None:
                each = self.forwards(part, [1])
                found.append({tier: lengths * seconds for tier, seconds in each.items()})
        if cost.once is not None:
            found.append(self.forwards(cost.once, rows))
        return found

    def _within_a_step(self) -> Grid:
        """A step's overhead is the target's, paid once."""
        tiers = {
            tier: replace(each, calibration=replace(each.calibration, step_overhead=0.0))
            for tier, each in self.tiers.items()
        }
        return replace(self, tiers=tiers)
