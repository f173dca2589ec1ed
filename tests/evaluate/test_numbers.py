"""The numbers of an evaluation, from rows that are known."""

from __future__ import annotations

import pytest

from paceline.core.rounds import counted_rounds, speedup_points
from paceline.evaluate import numbers
from tests.evaluate.made import FULLY, random_rows, row


def test_acceptance_length_is_one_and_the_sum_of_what_positions_accept() -> None:
    found = numbers.acceptance(random_rows(20), FULLY, tokens=256, block=4)
    assert found.al == pytest.approx(1 + sum(each.share for each in found.positions))
    product = 1.0
    for each in found.positions:
        product *= each.conditional
        assert each.share == pytest.approx(product)  # drafts were whole: nobody fell out


def test_it_is_pooled_over_rounds_and_the_mean_of_requests_stands_beside_it() -> None:
    rows = [row([4, 4]), row([0, 0, 0, 0, 0, 0])]
    found = numbers.acceptance(rows, FULLY, tokens=256, block=4)
    assert found.al == pytest.approx(16 / 8)
    assert found.al_mean_of_requests == pytest.approx((5 + 1) / 2)
    assert (found.requests, found.rounds) == (2, 8)


def test_per_block_acceptance_is_not_the_product_of_averages() -> None:
    """Half of the rounds accept all, half nothing: each position's average is 1/2."""
    found = numbers.acceptance([row([4, 0] * 10)], FULLY, tokens=256, block=4)
    assert found.al == pytest.approx(3.0)
    assert 1 + sum(0.5**k for k in range(1, 5)) == pytest.approx(1.94, abs=0.01)


def test_a_round_without_a_draft_counts_as_one_that_accepted_nothing() -> None:
    one = row([3, 3])
    one["rounds"][FULLY] = [[1, 4, 3], [5, 0, 0], [6, 4, 3]]
    found = numbers.acceptance([one], FULLY, tokens=256, block=4)
    assert found.al == pytest.approx(9 / 3) and found.drafted_rounds == 2
    first = found.positions[0]
    assert first.share == pytest.approx(2 / 3) and first.conditional == 1.0


def test_what_comes_after_a_loop_has_begun_does_not_raise_it() -> None:
    looping = row([0] * 10 + [4] * 20, counted=11)
    found = numbers.acceptance([looping], FULLY, tokens=256, block=4)
    assert (found.al, found.rounds) == (1.0, 10)
    uncut = {**looping, "counted_tokens": looping["output_tokens"]}
    assert numbers.acceptance([uncut], FULLY, tokens=256, block=4).al > 3  # the control


def test_rounds_that_the_limit_of_tokens_cut_short_do_not_count() -> None:
    one = row([0] * 15, tokens=16)
    found = numbers.acceptance([one], FULLY, tokens=16, block=4)
    last = 16 - 4 - 1  # from here a block of 4 and the bonus just fit
    assert found.rounds == last
    assert len(counted_rounds(one, FULLY, tokens=16)) == 15


def test_contexts_are_bins_of_the_tokens_before_the_anchor() -> None:
    edges = {0: 0, 127: 0, 128: 128, 255: 128, 256: 256, 1023: 512, 1024: 1024, 5000: 4096}
    assert {before: numbers.context_bin(before) for before in edges} == edges
    one = row([0, 1, 2], prompt_tokens=127)  # anchors at 127, 128 and 130
    found = numbers.contexts([one], FULLY, tokens=256, block=4)
    assert [(c.start, c.end, c.rounds, c.al) for c in found] == [
        (0, 128, 1, 1.0),
        (128, 256, 2, 2.5),
    ]


def test_speedup_is_total_time_over_total_time() -> None:
    rows = [row([1, 1], seconds=0.5), row([1, 1], seconds=0.25)]
    rows[1]["seconds"]["ar"] = [3.0]
    found = numbers.speed(rows, FULLY, tokens=256)
    assert found.speedup == pytest.approx(4 / 0.75)
    assert found.tokens_per_round == 2.0
    assert found.speedup_per_token == pytest.approx(4 / 0.75 / 2)
    assert found.ar_tpot_ms == pytest.approx(1e3 * 4 / 8)


def test_requests_too_short_to_time_are_left_out_of_the_speed() -> None:
    short = row([], tokens=1)
    for side in short["seconds"]:
        short["seconds"][side] = [None]
    found = numbers.speed([row([1, 1]), short], FULLY, tokens=256)
    assert found.requests == 1 and found.speedup == 2.0
    nothing = numbers.speed([short], FULLY, tokens=256)
    assert nothing.speedup is None and nothing.tpot_ms is None
    assert speedup_points([short], FULLY, tokens=256) == []


def test_intervals_hold_the_number_are_repeatable_and_need_requests() -> None:
    rows = random_rows(30)
    found = numbers.acceptance(rows, FULLY, tokens=256, block=4)
    low, high = found.al_interval
    assert low < found.al < high
    assert numbers.acceptance(rows, FULLY, tokens=256, block=4) == found
    assert numbers.acceptance(rows[:4], FULLY, tokens=256, block=4).al_interval is None
    wide = numbers.acceptance(rows[:8], FULLY, tokens=256, block=4).al_interval
    assert wide[1] - wide[0] > high - low


def test_bootstrap_intervals_cover_the_truth_as_often_as_they_say() -> None:
    inside = 0
    for seed in range(100):
        rows = random_rows(40, seed)  # accepted is uniform on 0..4: AL is 3
        low, high = numbers.acceptance(rows, FULLY, tokens=256, block=4).al_interval
        inside += low <= 3.0 <= high
    assert inside >= 86
