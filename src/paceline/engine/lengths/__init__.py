"""Draft lengths: one controller for each policy, and the one that asks the right one of them."""

from __future__ import annotations

from collections.abc import Callable

from paceline.engine.costs import Costs
from paceline.engine.lengths.base import FixedLengths, LengthController, WholeDrafts
from paceline.engine.lengths.ema import EmaLengths
from paceline.engine.lengths.mixed import LengthsByPolicy
from paceline.engine.lengths.throughput import ThroughputLengths

# By kind of policy; "off" has none, since such a request has no drafter at all.
CONTROLLERS: dict[str, Callable[[Costs, bool], LengthController]] = {
    "throughput": ThroughputLengths,
    "fixed": lambda costs, cuts: FixedLengths(),
    "ema": lambda costs, cuts: EmaLengths(),
}


def make_lengths(costs: Costs, cuts: bool) -> LengthController:
    """A controller for requests of any policy. `cuts` says that the verification rule lets drafts
    be cut after they are drawn."""
    return LengthsByPolicy({kind: make(costs, cuts) for kind, make in CONTROLLERS.items()})


__all__ = [
    "CONTROLLERS",
    "EmaLengths",
    "FixedLengths",
    "LengthController",
    "LengthsByPolicy",
    "ThroughputLengths",
    "WholeDrafts",
    "make_lengths",
]
