"""The cost of a step, by its rows and by the context that they read, is learned from steps."""

from __future__ import annotations

import pytest

from paceline.core import Request, SamplingParams
from paceline.engine.scheduler import Scheduled, looking_back
from paceline.engine.step_cost import StepCost


def request(length: int) -> Request:
    return Request(id="a", prompt_ids=[1] * length, params=SamplingParams(), max_tokens=100)


def test_step_cost_is_linear_between_and_beyond_and_never_falls() -> None:
    cost = StepCost([1, 8, 16], [1.0, 0.9, 2.0])
    assert cost(1) == cost(8) == 1.0
    assert cost(12) == 1.5 and abs(cost(32) - 4.0) < 1e-9
    assert cost.rows_within(1.5 * cost(8), 8, most=56) == 4
    assert cost.rows_within(1.0001 * cost(60), 60, most=4) == 0


def test_many_rows_cost_what_more_tiles_cost_and_not_what_a_row_of_the_last_one_does() -> None:
    """Rows 49 to 64 share a tile on AMX: along their line a prompt of 512 tokens would be free."""
    tiles = [1, 16, 17, 32, 33, 48, 49, 64], [1.0, 1.1, 1.3, 1.4, 1.7, 1.8, 2.1, 2.2]
    assert StepCost(*tiles)(512) == pytest.approx(2.2 + 448 * 0.8 / 32)
    dearer = StepCost(*tiles)
    dearer.observe(64, 2.6)
    assert dearer(512) < 1.25 * StepCost(*tiles)(512)


def test_what_a_step_looks_back_on_costs_time_and_is_learned_apart() -> None:
    cost = StepCost([1, 64], [1.0, 4.0], per_key=1e-4, per_pair=1e-5)
    back = cost.looking_back(4096, 51)
    assert back == pytest.approx(4096e-4 + 50 * (4096 + 25.5) * 1e-5)
    assert cost(51, 1, back) == pytest.approx(cost(51) + back)
    assert cost.rows_within(2.0, 1, 63, start=0) == 20
    assert 8 < cost.rows_within(2.0, 1, 63, start=4096) < 13, "to read the keys is not counted"


def test_rows_and_what_they_look_back_on_are_learned_each_by_its_share() -> None:
    cost, true = (StepCost([1, 64], [1.0, 4.0], per_key=1e-4, per_pair=1e-5) for _ in range(2))
    cost.per_key, cost.per_pair = 0.5e-4, 0.5e-5
    for _ in range(300):
        for start, count in ((0, 1), (4096, 1), (2048, 8)):
            seconds = true(count, 1, true.looking_back(start, count))
            cost.observe(count, seconds, 1, cost.looking_back(start, count))
    for start, count in ((0, 1), (4096, 1), (2048, 8)):
        found = cost(count, 1, cost.looking_back(start, count))
        assert found == pytest.approx(true(count, 1, true.looking_back(start, count)), rel=0.1)
    assert cost.per_key == pytest.approx(1e-4, rel=0.25), "half of it was known before"


def test_a_slower_machine_is_told_by_steps_that_look_back_too() -> None:
    cost = StepCost([1, 64], [1.0, 4.0], per_key=1e-4, per_pair=1e-5)
    for _ in range(50):
        cost.observe(1, 2 * 1.4096, 1, cost.looking_back(4096, 1))
    assert cost(1) == pytest.approx(2.0, rel=0.2)
    assert cost(1, 1, cost.looking_back(4096, 1)) == pytest.approx(2 * 1.4096, rel=0.01)


def test_a_decoding_requests_context_is_no_cost_of_the_prompt_beside_it() -> None:
    """Contexts grow while a long prompt is computed. Its chunks must not get the blame: they would
    shrink, and the prompt take even longer."""
    cost = StepCost([1, 4, 24], [1.0, 1.0, 3.0], per_key=1e-4)
    true = StepCost([1, 4, 24], [1.0, 1.0, 3.0], per_key=1e-4)
    requests = [request(4000) for _ in range(4)]
    for context in range(0, 4000, 10):
        entries = [Scheduled(each, context, 1) for each in requests]
        entries.append(Scheduled(request(8000), 4000, 2, chunk=True))
        seconds = true(6, 5) + (4 * context + 4000) * 1e-4
        cost.observe(6, seconds, 5, looking_back(cost, entries))
    assert cost.reading(4096) == pytest.approx(0.4096)


def test_sizes_of_a_step_are_learned_though_they_come_in_long_phases() -> None:
    """Costs that were timed on a busy machine, where large steps hardly cost more than small ones:
    decoding alone, and then beside a long prompt, again and again. Were the second phase taken for
    a slower machine, the chunks would stay too large for ever."""
    true = StepCost([1, 4, 32], [1.0, 1.0, 2.0], per_key=1e-4)
    cost = StepCost([1, 4, 32], [1.0, 1.0, 1.2], per_key=1e-4)
    for _ in range(12):
        for rows, requests, start in [(4, 4, 0)] * 100 + [(32, 5, 20 * i) for i in range(200)]:
            back = true.looking_back(start, 1)
            seconds = true(rows, requests, back)
            cost.observe(rows, seconds, requests, cost.looking_back(start, 1))
    assert cost(32) / cost(4) == pytest.approx(2.0, rel=0.1)
    assert cost.reading(2000) / cost(4) == pytest.approx(0.2, rel=0.2)


def test_step_cost_learns_from_steps_without_forgetting_its_shape() -> None:
    cost = StepCost([1, 8, 16], [1.0, 1.0, 2.0])
    for _ in range(100):
        cost.observe(1, 3.0)  # memory is slower
    assert cost(1) == pytest.approx(3.0, rel=0.01) and 3.0 < cost(16) < 4.0
    for _ in range(500):
        cost.observe(1, 3.0)
        cost.observe(8, 6.0)  # dearer than was thought
    assert cost(8) / cost(1) == pytest.approx(2.0, rel=0.1)
    assert cost(1) < cost(4) < cost(8) <= cost(16)
    cost.observe(1000, 1e9)  # a prompt's step says nothing about drafts
    cost.observe(1, 1e9)  # a neighbour took the machine for a while
    assert cost(1) < 4.0


# Milliseconds of SmolLM2-135M on two cores of one shared machine, minutes apart: the read loop had
# 57 GB/s, and then 33.
SIZES = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64]
FAST = [4.7, 4.8, 5.9, 7.0, 10.0, 12.8, 19.7, 25.2, 38.2, 49.3]
SLOW = [8.2, 8.3, 8.4, 9.0, 9.5, 11.5, 17.7, 22.2, 34.2, 44.0]


@pytest.mark.parametrize("plain", [1, 4, 8])
def test_where_memory_becomes_slow_many_rows_cost_little_more_than_before(plain: int) -> None:
    """Steps of few rows are all that it has seen since. Drafts that would pay must not be left
    out for it: 64 rows cost 7 times 8 where memory is fast, and 5 times where it is slow."""
    cost, true = StepCost(SIZES, FAST), StepCost(SIZES, SLOW)
    for _ in range(60):
        cost.observe(plain, true(plain))
    assert cost(plain) == pytest.approx(true(plain), rel=0.05)
    assert cost(64) < 1.3 * true(64) and cost(64) / cost(8) < 6.4
    for _ in range(60):
        cost.observe(plain, StepCost(SIZES, FAST)(plain))
    assert cost(64) / cost(8) == pytest.approx(FAST[-1] / FAST[3], rel=0.1)


def test_a_row_alone_tells_the_pace_of_memory_at_the_start() -> None:
    cost, true = StepCost(SIZES, FAST), StepCost(SIZES, SLOW)
    cost.rescale(SLOW[0] / FAST[0])
    for rows in (1, 8, 32, 64):
        assert cost(rows) == pytest.approx(true(rows), rel=0.2)
    cost.rescale(FAST[0] / SLOW[0])
    assert cost.seconds == pytest.approx(StepCost(SIZES, FAST).seconds)


def test_a_table_of_slow_memory_learns_that_memory_is_fast() -> None:
    cost, true = StepCost(SIZES, SLOW), StepCost(SIZES, FAST)
    for _ in range(60):
        cost.observe(1, true(1))
        cost.observe(8, true(8))
    assert cost(1) == pytest.approx(true(1), rel=0.1)
    assert cost(8) == pytest.approx(true(8), rel=0.1)


@pytest.mark.parametrize("pace", [0.6, 1.75])
def test_what_rows_add_agrees_at_any_pace(pace: float) -> None:
    cost = StepCost(SIZES, FAST, per_request=0.1, per_key=1e-4, per_pair=1e-5)
    cost.rescale(pace)
    back, row_back = cost.looking_back(2000, 1), cost.attending(2000, 2)
    steps = cost.upwards(4, 80, 3, back, row_back)
    assert steps == pytest.approx([cost(4 + i, 3, back + i * row_back) for i in range(81)])
    assert cost.row_seconds(4, 8, row_back) == pytest.approx((steps[8] - steps[0]) / 8)
    assert cost.reading(2000) == pytest.approx(pace * 0.2), "keys are read at the pace of memory"


def test_slow_memory_makes_no_long_prompt_cheaper() -> None:
    """Rows beyond the grid are arithmetic. No step of so many rows is ever learned from."""
    before = 0.0
    for pace in (0.6, 1.0, 1.4, 1.75):
        cost = StepCost(SIZES, FAST)
        cost.rescale(pace)
        assert cost(512) >= before
        before = cost(512)


def test_where_arithmetic_becomes_slow_all_large_steps_are_dearer() -> None:
    cost = StepCost(SIZES, FAST)
    for _ in range(300):
        cost.observe(64, 1.5 * FAST[-1])
    assert cost(64) == pytest.approx(1.5 * FAST[-1], rel=0.05)
    assert 1.15 < cost(32) / FAST[7] < 1.5
