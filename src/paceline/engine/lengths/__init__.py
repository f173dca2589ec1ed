"""Draft lengths: a controller for each draft policy, and one for requests of any policy."""

from __future__ import annotations

from collections.abc import Collection

from paceline.engine.costs import Costs
from paceline.engine.lengths.base import Bound, LengthController, LengthsByPolicy
from paceline.engine.lengths.throughput import ThroughputLengths


def make_lengths(costs: Costs, cuts: bool, looking_up: Collection[str] = ()) -> LengthController:
    """Make a controller for requests of any policy. `cuts` says that the verification rule lets
    drafts be cut after they are drawn; drafters `looking_up` have drafts that take no time, and may
    come and go."""
    # The policy "off" has no controller: such a request has no drafter at all.
    throughput = ThroughputLengths(costs, cuts, looking_up)
    return LengthsByPolicy({"throughput": throughput, "fixed": LengthController()})


__all__ = ["Bound", "LengthController", "LengthsByPolicy", "ThroughputLengths", "make_lengths"]
