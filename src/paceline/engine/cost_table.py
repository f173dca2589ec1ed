"""The costs an engine starts from: timed once for a model, its drafters and a machine, then kept.

The file lies in the user's cache, beside the kernels. What is in it is where learning starts: the
steps themselves go on refining the costs, and the pace of the day is taken from a single row.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.core import CacheError
from paceline.core.cache import cache_dir, load_json, save_json
from paceline.drafters.base import Drafter, Rehearsing, longest_proposed
from paceline.engine.costs import Costs
from paceline.engine.machine import cpu_name, usable_cores
from paceline.engine.step_cost import REPEATS, StepCost, timed
from paceline.models.batch import BLOCK_SIZE
from paceline.version import __version__

log = logging.getLogger(__name__)

FORMAT = 1
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
    identity: Mapping[str, Any] | None = field(default=None)

    @property
    def key(self) -> dict[str, Any]:
        """Plain JSON: the identity, this program and this machine."""
        drafters = {name: drafter.version for name, drafter in self.drafters.items()}
        machine = {"cpu": cpu_name(), "cores": usable_cores()}
        own = {"format": FORMAT, "paceline": __version__, "rows": self.rows, "drafters": drafters}
        return {**(self.identity or {}), **own, **machine, "requests": self.requests}


def starting_costs(source: CostSource) -> Costs:
    """The costs from the cache, at today's pace, or measured and kept for the next time."""
    if source.identity is None:
        return _measure(source)
    found = _read(source)
    if found is not None:
        return found
    costs = _measure(source)
    _write(source, costs)
    return costs


def _empty(source: CostSource, step: StepCost) -> Costs:
    return Costs(step, {name: drafter.parallel for name, drafter in source.drafters.items()})


def _measure(source: CostSource) -> Costs:
    costs = _empty(source, StepCost.measure(source.forward, source.rows, source.requests))
    for name, drafter in source.drafters.items():
        if isinstance(drafter, Rehearsing):
            length = longest_proposed(drafter)
            blocks = -(-(length + 1) // BLOCK_SIZE)
            many = max(1, min(TOGETHER, source.requests, source.rows // (blocks * BLOCK_SIZE)))
            costs.of(name).rehearse(drafter.rehearse, many, length)
    return costs


def _path(source: CostSource) -> Path:
    digest = hashlib.sha256(json.dumps(source.key, sort_keys=True).encode()).hexdigest()
    return cache_dir() / "costs" / f"{digest[:24]}.json"


def _read(source: CostSource) -> Costs | None:
    """None, and a line in the log, where there is no table or none that can be believed."""
    path = _path(source)
    try:
        saved = load_json(path)
        if saved["key"] != source.key:
            raise ValueError("it belongs to another model or machine")
        costs = _empty(source, StepCost.restored(saved["step"]))
        for name, lines in saved["drafters"].items():
            costs.of(name).restore(lines)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("cost table %s cannot be used (%s): measuring again", path, error)
        return None
    now = min(timed(source.forward, 1, 1) for _ in range(1 + REPEATS))
    pace = now / costs.step(1)
    if not 1 / STALE < pace < STALE:
        log.warning("cost table %s is off by a factor of %.1f: measuring again", path, pace)
        return None
    costs.rescale(pace)
    return costs


def _write(source: CostSource, costs: Costs) -> None:
    try:
        save_json(_path(source), {"key": source.key, **costs.saved()})
    except CacheError as error:
        log.warning("step costs cannot be kept and are measured at each start: %s", error)
