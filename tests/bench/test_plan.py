"""The plan of a mock: which cells there are, where requests begin, and how long they get."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.bench.mock.plan import WARM_UP, MockPlan
from paceline.bench.mock.report import COLUMNS, NOT_CALIBRATED, notes
from paceline.core import InvalidRequest
from paceline.roofline.acceptance import Profile

PLAN = MockPlan((2.0, 4.0), draft_lengths=(1, 7), batches=(1, 8), context=300, steps=16)


def test_every_batch_has_every_length_with_the_goals_that_it_can_reach() -> None:
    cells = [(c.batch, c.draft_length, round(c.acceptance_length, 6)) for c in PLAN.cells()]
    assert cells == [(b, *rest) for b in (1, 8) for rest in ((1, 2.0), (7, 2.0), (7, 4.0))]


def test_a_length_has_one_rate_at_every_position_and_a_profile_its_own() -> None:
    cell = next(MockPlan((4.0,), draft_lengths=(7,)).cells())
    assert len(cell.rates) == 7 and max(cell.rates) == pytest.approx(min(cell.rates))
    profile = MockPlan((Profile.of_conditional([0.9, 0.5]),), draft_lengths=(2,))
    assert next(profile.cells()).rates == pytest.approx((0.9, 0.5))


def test_whole_numbers_are_lengths_too() -> None:
    assert next(MockPlan((2,), draft_lengths=(3,)).cells()).acceptance_length == pytest.approx(2)


def test_requests_begin_so_far_below_the_context_that_they_reach_it_in_the_middle() -> None:
    assert PLAN.before(1.0) == WARM_UP + 8
    assert PLAN.before(4.0) == 4 * (WARM_UP + 8)
    shortest = replace(PLAN, context=1 + PLAN.before(4.0))
    with pytest.raises(InvalidRequest, match=f"context.*at least {1 + PLAN.before(4.0)}"):
        replace(PLAN, context=shortest.context - 1)


def test_there_is_room_for_every_draft_to_be_accepted_to_the_end() -> None:
    begins = PLAN.context - PLAN.before(4.0)
    assert PLAN.longest >= begins + (WARM_UP + PLAN.steps) * 8
    assert PLAN.tokens >= 2 * 8 * PLAN.longest


def test_a_plan_without_a_calibration_says_what_is_missing() -> None:
    assert notes([]) == [*COLUMNS, NOT_CALIBRATED]
