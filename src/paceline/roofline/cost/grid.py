"""Times of whole maps at once: fast twins of `Deployment.forward_time` and `DrafterCost.time`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.roofline.architecture import Architecture
from paceline.roofline.architecture.work import Workload
from paceline.roofline.cost.deployment import Deployment, WorkTable
from paceline.roofline.cost.drafters import DrafterCost
from paceline.roofline.device import Calibration

Seconds = Mapping[str, np.ndarray]  # by tier


@dataclass(frozen=True)
class Grid:
    """Batches over contexts, under several calibrations (tiers): the work of each forward is
    counted once for all of them."""

    deployment: Deployment
    loads: tuple[Workload, ...]
    tiers: Mapping[str, Calibration]

    def forwards(self, rows: Sequence[int]) -> dict[str, np.ndarray]:
        """Seconds of the target's forwards of so many rows a request, [loads, rows]."""
        return self._forwards(self.deployment, rows, self.tiers)

    def drafts(self, cost: DrafterCost, longest: int, plain: Seconds) -> dict[str, np.ndarray]:
        """Seconds of drafts of 0 … `longest` tokens, [loads, longest + 1]; `plain` is the target's
        step of one row a request, [loads, 1]."""
        host = cost.host_seconds * np.array([[load.batch] for load in self.loads]).reshape(-1, 1)
        drafted = np.arange(longest + 1) > 0
        seconds = {tier: host * drafted for tier in self.tiers}
        within = {tier: each.within_a_step() for tier, each in self.tiers.items()}
        for network, rows, counts in _passes(cost, longest):
            steps = plain
            if network is not None:
                steps = self._forwards(self.deployment.running(network), rows, within)
            seconds = {tier: before + steps[tier] @ counts for tier, before in seconds.items()}
        return seconds

    def _forwards(
        self, deployment: Deployment, rows: Sequence[int], tiers: Mapping[str, Calibration]
    ) -> dict[str, np.ndarray]:
        pairs = itertools.product(self.loads, rows)
        table = WorkTable.of(
            [(deployment, Workload(load.batch, row, load.context)) for load, row in pairs]
        )
        shape = (len(self.loads), len(rows))
        return {tier: table.seconds(each).reshape(shape) for tier, each in tiers.items()}


def _passes(
    cost: DrafterCost, longest: int
) -> list[tuple[Architecture | None, list[int], np.ndarray]]:
    """By network: the rows of its passes, and the count of each in a draft of 0 … `longest` tokens
    [rows, longest + 1]."""
    networks: dict[int, Architecture | None] = {}
    counts: dict[int, dict[int, np.ndarray]] = {}
    for length in range(1, longest + 1):
        for network, rows, times in cost.passes(length):
            networks[id(network)] = network
            by_rows = counts.setdefault(id(network), {})
            by_rows.setdefault(rows, np.zeros(longest + 1))[length] += times
    return [
        (networks[key], list(by_rows), np.stack(list(by_rows.values())))
        for key, by_rows in counts.items()
    ]
