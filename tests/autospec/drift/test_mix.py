"""The change of the total AL is the sum of its parts, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.autospec.drift.mix import decompose, explain_recent

ROWS = st.lists(
    st.tuples(st.floats(0, 1e6), st.floats(1, 20), st.floats(0, 1e6), st.floats(1, 20)),
    min_size=1,
    max_size=8,
).filter(lambda rows: sum(r[0] for r in rows) > 1 and sum(r[2] for r in rows) > 1)


@given(ROWS)
def test_parts_sum_up(rows: list[tuple[float, float, float, float]]) -> None:
    was, old, now, new = map(np.array, zip(*rows, strict=True))
    parts = decompose(was, old, now, new)
    before, after = (was @ old) / was.sum(), (now @ new) / now.sum()
    assert parts.before == pytest.approx(before) and parts.now == pytest.approx(after)
    assert parts.mix.sum() + parts.within.sum() == pytest.approx(after - before, abs=1e-9)


def test_shares_alone_are_mix_and_acceptance_alone_is_within() -> None:
    moved = decompose([50, 50], [5.0, 3.0], [20, 80], [5.0, 3.0])
    assert moved.change == pytest.approx(-0.6)
    assert moved.mix.sum() == pytest.approx(-0.6) and not moved.within.any()
    fallen = decompose([50, 50], [5.0, 3.0], [50, 50], [4.6, 3.0])
    assert not fallen.mix.any() and fallen.within.tolist() == pytest.approx([-0.2, 0])


def test_cohorts_that_come_and_go_are_mix() -> None:
    parts = decompose([100, 0], [4.0, np.nan], [50, 50], [4.0, 2.0])
    assert not parts.within.any() and parts.change == pytest.approx(-1.0)
    gone = decompose([50, 50], [4.0, 2.0], [100, 0], [4.0, np.nan])
    assert not gone.within.any() and gone.change == pytest.approx(1.0)


@given(ROWS, st.floats(1, 20))
def test_recent_parts_sum_up(rows: list[tuple[float, float, float, float]], mean: float) -> None:
    usual, expected, rounds, al = map(np.array, zip(*rows, strict=True))
    parts = explain_recent(mean, usual, expected, rounds, al)
    assert parts.season + parts.mix + parts.within == pytest.approx(parts.now - mean, abs=1e-9)
    assert parts.now == pytest.approx((rounds @ al) / rounds.sum())
