"""Simulated traffic as hourly cells, and seeds that nobody chose."""

from __future__ import annotations

import os

import numpy as np

from paceline.autospec.drift.cells import HOUR, HourCells
from paceline.autospec.simulate.world import COHORTS, MONDAY, SimulationPlan, draw_traffic
from paceline.autospec.sums import TR, TT, T

NORTH, SOUTH = (cohort.label for cohort in COHORTS)


def drawn_seeds(count: int) -> list[int]:
    """Return seeds from the system's noise; a failing test prints the first, and all follow."""
    first = int.from_bytes(os.urandom(4), "big")
    return [(first + index) % 2**32 for index in range(count)]


def at_day(day: float) -> float:
    """Return the seconds since the epoch of a day of a simulation."""
    return (MONDAY + 24 * day) * HOUR


def simulated_cells(plan: SimulationPlan, seed: int, days: int) -> HourCells:
    """Return the first days of a run, with the event's fall."""
    traffic = draw_traffic(plan, seed)
    sums = traffic.cells()
    sums[T] *= traffic.factor
    sums[TR] *= traffic.factor
    sums[TT] *= traffic.factor**2
    return HourCells((NORTH, SOUTH), MONDAY, np.ascontiguousarray(sums[:, :, : 24 * days]))
