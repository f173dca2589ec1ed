"""The costs an engine starts from: timed once for a model, its drafters and a machine, then kept.

They are where learning starts: the steps themselves go on refining the costs, and the pace of the
day is taken from a single row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.drafters.base import Drafter, Rehearsing, longest_proposed
from paceline.engine.costs import Costs, DraftCost
from paceline.engine.kept import Kept
from paceline.engine.machine import cpu_name, usable_cores
from paceline.engine.step_cost import REPEATS, StepCost, timed
from paceline.models.batch import BLOCK_SIZE
from paceline.version import __version__

log = logging.getLogger(__name__)

FORMAT = 2
STALE = 3.0  # so many times slower or faster than it says, and a table is that of another machine
TOGETHER = 8  # requests that a drafter's rehearsal drafts for, beside a single one


@dataclass(frozen=True, slots=True)
class CostSource:
    """The steps to time at start-up, and the facts that the timings depend on.

    `forward(rows, requests)` computes a step over blocks that nobody owns yet, of at most `rows`
    rows and `requests` requests. `identity` names everything that a cached table must agree in;
    None where the model has no identity, and nothing is cached.
    """

    forward: Callable[[int, int], object]
    rows: int
    requests: int
    drafters: Mapping[str, Drafter]
    identity: Mapping[str, object] | None = None

    @property
    def key(self) -> dict[str, object]:
        """Plain JSON: the identity, this program and this machine."""
        drafters = {name: drafter.version for name, drafter in self.drafters.items()}
        machine = {"cpu": cpu_name(), "cores": usable_cores()}
        own = {"format": FORMAT, "paceline": __version__, "rows": self.rows, "drafters": drafters}
        return {**(self.identity or {}), **own, **machine, "requests": self.requests}


def starting_costs(source: CostSource) -> Costs:
    """The costs from the cache, at today's pace, or measured and kept for the next time."""
    if source.identity is None:
        return _measure(source)
    kept = Kept("costs", source.key, Costs)
    costs = kept.read()
    if costs is None or not _follows_pace(costs, source):
        costs = kept.write(_measure(source))
    return costs


def _measure(source: CostSource) -> Costs:
    step = StepCost.measure(source.forward, source.rows, source.requests)
    costs = Costs(step, {name: DraftCost(d.parallel) for name, d in source.drafters.items()})
    for name, drafter in source.drafters.items():
        if isinstance(drafter, Rehearsing):
            length = longest_proposed(drafter)
            blocks = -(-(length + 1) // BLOCK_SIZE)
            many = max(1, min(TOGETHER, source.requests, source.rows // (blocks * BLOCK_SIZE)))
            costs.of(name).rehearse(drafter.rehearse, many, length)
    return costs


def _follows_pace(costs: Costs, source: CostSource) -> bool:
    """Rescale the costs to today's pace; False where they are too far off to be believed."""
    now = min(timed(source.forward, 1, 1) for _ in range(1 + REPEATS))
    pace = now / costs.step(1)
    if not 1 / STALE < pace < STALE:
        log.warning("the cost table is off by a factor of %.1f: measuring again", pace)
        return False
    costs.rescale(pace)
    return True
