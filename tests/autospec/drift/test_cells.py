"""Hourly sums: in any order, in any batches, and over a crash."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.autospec.drift import HourCells, RequestColumns
from paceline.autospec.drift.cells import HOUR, LOOPING
from paceline.autospec.sums import N, R, ratio_of, residuals, squares
from paceline.core import InvalidRequest


def requests(count: int, seed: int = 0) -> RequestColumns:
    rng = np.random.default_rng(seed)
    rounds = rng.integers(0, 40, count).astype(float)
    return RequestColumns(
        ("a", "b", "c"),
        rng.integers(0, 3, count),
        1_700_000_000 + rng.random(count) * 50 * HOUR,
        np.floor(rounds * rng.random(count) * 7),
        rounds,
        np.full(count, 7.0),
    )


def some(columns: RequestColumns, rows: np.ndarray) -> RequestColumns:
    rest = (columns.cohort, columns.time, columns.accepted, columns.rounds, columns.longest)
    return RequestColumns(columns.cohorts, *(values[rows] for values in rest))


def test_batches_in_any_order_add_up_to_the_whole() -> None:
    whole = requests(2000)
    order = np.random.default_rng(1).permutation(2000)
    cells = HourCells()
    for part in np.array_split(order, 7):
        cells = cells + HourCells.of(some(whole, part))
    expected = HourCells.of(whole)
    assert cells.start == expected.start and cells.cohorts == expected.cohorts
    assert np.allclose(cells.sums, expected.sums)


def test_a_cohort_that_comes_later_gets_a_row() -> None:
    early = HourCells(("a",), 10, np.ones((8, 1, 2)))
    late = HourCells(("b", "a"), 13, np.full((8, 2, 1), 2.0))
    both = early + late
    assert both.cohorts == ("a", "b") and both.end == 14
    assert both.sums[0].tolist() == [[1, 1, 0, 2], [0, 0, 0, 2]]


def test_acceptance_counts_the_bonus_token_and_only_drafted_rounds() -> None:
    columns = RequestColumns(
        ("a",), np.zeros(2, int), np.zeros(2), np.array([9.0, 0]), np.array([3.0, 0]), np.full(2, 7)
    )
    cells = HourCells.of(columns)
    assert cells.sums[N].sum() == 1
    assert float(ratio_of(cells.sums)[0, 0]) == 4.0  # 3 rounds: 9 accepted and 3 bonus tokens


def test_a_request_loops_when_nearly_every_draft_is_accepted_whole() -> None:
    rounds = np.array([20.0, 20.0, 3.0])
    accepted = np.array([7 * 20.0, 5 * 20.0, 7 * 3.0])  # the last one is too short to tell
    columns = RequestColumns(("a",), np.zeros(3, int), np.zeros(3), accepted, rounds, np.full(3, 7))
    assert HourCells.of(columns).sums[LOOPING].sum() == 20


def test_sums_hold_residuals_and_their_squares() -> None:
    columns = requests(500)
    cells = HourCells.of(columns)
    tokens = columns.rounds + columns.accepted
    left = tokens - 3.7 * columns.rounds
    assert float(residuals(cells.sums, 3.7).sum()) == pytest.approx(left.sum())
    assert float(squares(cells.sums, 3.7).sum()) == pytest.approx((left**2).sum())
    assert cells.sums[R].sum() == columns.rounds.sum()


def test_bytes_give_back_the_same_cells() -> None:
    cells = HourCells.of(requests(300))
    again = HourCells.from_bytes(cells.to_bytes())
    assert again.cohorts == cells.cohorts and again.start == cells.start
    assert np.array_equal(again.sums, cells.sums)


@pytest.mark.parametrize("content", [b"", b"nonsense", HourCells().to_bytes()[:40]])
def test_damaged_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequest, match="cells"):
        HourCells.from_bytes(content)


def test_wrong_columns_are_refused_by_name() -> None:
    good = requests(5)
    with pytest.raises(InvalidRequest, match="equal length"):
        RequestColumns(("a",), good.cohort[:2], good.time, good.accepted, good.rounds, good.longest)
    with pytest.raises(InvalidRequest, match="cohort: got"):
        RequestColumns(("a",), good.cohort, good.time, good.accepted, good.rounds, good.longest)
    with pytest.raises(InvalidRequest, match="counts of at least 0"):
        some_rounds = -good.rounds
        RequestColumns(good.cohorts, good.cohort, good.time, some_rounds, good.rounds, good.longest)


def test_hours_are_cut_and_padded() -> None:
    cells = HourCells(("a",), 10, np.arange(8 * 3, dtype=float).reshape(8, 1, 3))
    assert cells.between(8, 12)[0].tolist() == [[0, 0, 0, 1]]
    assert cells.since(12).start == 12 and cells.since(12).sums.shape == (8, 1, 1)
    assert cells.since(99).sums.shape == (8, 1, 0)
