"""What tests read off the deltas of a stream."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.core import OutputDelta, Request, SpeculationStats
from paceline.engine.driver import Driver
from paceline.engine.engine import Engine


def stats_of(deltas: Iterable[OutputDelta]) -> SpeculationStats:
    """The fold of the rounds that some deltas carry."""
    return SpeculationStats.of(delta.round for delta in deltas if delta.round is not None)


def run_to_end(engine: Engine, requests: list[Request]) -> list[OutputDelta]:
    """Queue requests and step until they have finished."""
    return list(Driver(engine).run(requests))
