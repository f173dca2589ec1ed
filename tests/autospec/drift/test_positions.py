"""Falls late in answers and in long contexts are told from others."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.autospec.drift import (
    DriftDecision,
    DriftKind,
    Ledger,
    PositionCells,
    RoundColumns,
    assess,
)
from paceline.autospec.drift.cells import DAY
from paceline.autospec.drift.positions import bin_start, doubling_bin
from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.simulate.world import SimulationPlan
from tests.autospec.traffic import NORTH, at_day, simulated_cells

START = int(at_day(0) // DAY)


def rounds(days: range, late: float, early: float = 1.0, context: int = 100) -> PositionCells:
    """Return 60 requests a day of 40 rounds, whose acceptance falls to `late` from token 256 on."""
    rng = np.random.default_rng(days.start)
    count = len(days) * 60
    request = np.repeat(np.arange(count), 40)
    position = np.tile(np.arange(40) * 12, count)
    level = 3.0 * np.where(position >= 256, late, early) * np.repeat(rng.normal(1, 0.1, count), 40)
    return PositionCells.of(
        RoundColumns(
            (NORTH,),
            np.zeros(request.size, int),
            request,
            np.repeat((START + days.start + np.arange(count) // 60) * DAY + 1.0, 40),
            position,
            np.full(request.size, context),
            np.clip(rng.poisson(np.maximum(level, 0.01)), 0, 7).astype(float),
        )
    )


def decay_of(cells: PositionCells) -> list[str]:
    calm = simulated_cells(SimulationPlan(event="season"), 3, 20)
    reports = assess(calm, Ledger(), at_day(20), AutospecPolicy(), positions=cells)
    decays = [report for report in reports if report.kind is DriftKind.DECAY]
    assert all(report.decision is DriftDecision.ALERT for report in decays)
    return [report.why[0] for report in decays]


def test_a_fall_late_in_answers_names_the_place() -> None:
    (why,) = decay_of(rounds(range(17), 1.0) + rounds(range(17, 20), 0.7))
    assert why.startswith(f"From token 256 of the answer on, AL of {NORTH} fell by 2")


def test_a_fall_everywhere_or_nowhere_is_no_decay() -> None:
    assert decay_of(rounds(range(17), 1.0) + rounds(range(17, 20), 1.0)) == []
    assert decay_of(rounds(range(17), 1.0) + rounds(range(17, 20), 0.7, early=0.7)) == []


def test_a_fall_in_long_contexts_is_one_of_context() -> None:
    before = rounds(range(17), 1.0) + rounds(range(17), 1.0, context=3000)
    after = rounds(range(17, 20), 1.0) + rounds(range(17, 20), 0.7, 0.7, context=3000)
    (why,) = decay_of(before + after)
    assert "From token 2048 of context on" in why


def test_one_bad_day_is_no_decay() -> None:
    days = rounds(range(19), 1.0) + rounds(range(19, 20), 0.3)
    assert decay_of(days) == []


def test_bins_double() -> None:
    assert doubling_bin(np.array([0, 127, 128, 255, 256, 4096])).tolist() == [0, 0, 1, 1, 2, 6]
    assert [bin_start(index) for index in (0, 1, 2, 6)] == [0, 128, 256, 4096]


def test_requests_are_the_unit() -> None:
    """A request's rounds in one bin are one observation: t and r are summed before squares."""
    cells = PositionCells.of(
        RoundColumns(("a",), np.zeros(3, int), np.array([7, 7, 8]), np.zeros(3),
                     np.array([0, 5, 0]), np.array([9, 9, 9]), np.array([2.0, 3.0, 4.0]))
    )  # fmt: skip
    requests, tokens, spent, squared = cells.sums[:4, 0, 0, 0, 0]
    assert (requests, tokens, spent) == (2, 12, 3)
    assert squared == pytest.approx(7**2 + 5**2)
    assert not PositionCells.of(RoundColumns(("a",), *[np.zeros(0, int)] * 6)).sums.size
