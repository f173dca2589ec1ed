"""Drafts that hardly anybody has judged are tried where only perfect ones would pay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.engine.draft import Draft
from paceline.engine.lengths import ThroughputLengths
from paceline.engine.scheduler import Scheduled
from tests.engine.test_lengths import BAD, asked, dear, entries, sevens

# sixteen requests: even drafts of which nine in ten stand at each place do not pay
ONLY_PERFECT = ([1, 16, 112], [1.0, 1.0, 5.92])


def rounds_of(
    lengths: ThroughputLengths, batch: list[Scheduled], right: Callable[[int, int], int], count: int
) -> list[list[int]]:
    """Return what is asked for in each round; `right` says how many tokens of a request's draft
    stand, by the request's place and the round."""
    history = []
    for round_ in range(count):
        history.append(asked(lengths, batch))
        for place, (entry, length) in enumerate(zip(batch, history[-1], strict=True)):
            stands = min(length, right(place, round_))
            entry.draft = sevens(length)
            lengths.observe(entry, [7] * (length + 1) if stands == length else [7] * stands + BAD)
    return history


def test_a_drafter_that_nobody_knows_is_tried_where_only_perfect_drafts_would_pay() -> None:
    lengths = ThroughputLengths(dear(0.1, step=ONLY_PERFECT))
    history = rounds_of(lengths, entries(16, 6), lambda place, round_: 6, 200)
    assert all(any(each) for each in history)
    assert sum(map(sum, history[-50:])) > 0.9 * 50 * 16 * 6


@pytest.mark.parametrize("stand", [0, 1, 3])
def test_a_drafter_that_turns_out_worse_is_not_asked_there_again(stand: int) -> None:
    """Each request tries until a first token was wrong; no pause begins, and the cohort's other
    requests are not held back, for the load is the reason."""
    lengths = ThroughputLengths(dear(0.1, step=ONLY_PERFECT))
    crowd = entries(16, 6)
    history = rounds_of(lengths, crowd, lambda place, round_: stand, 60)
    assert all(history[0]) and not any(map(sum, history[1:]))
    assert not any(lengths.sees(entry.request) for entry in crowd)
    lengths.begin_step(crowd[:2])
    assert all(asked(lengths, crowd[:2])), "no pause is in the way where the load falls"


def test_requests_without_a_wrong_token_go_on_alone_while_it_pays() -> None:
    lengths = ThroughputLengths(dear(0.1, step=([1, 4, 28], [1.0, 1.0, 5.92])))
    history = rounds_of(lengths, entries(4, 6), lambda place, round_: 6 if place else 0, 3)
    assert all(history[0]) and not history[1][0] and all(history[1][1:])


@pytest.mark.parametrize(
    ("draft", "goes_on"),
    [
        (Draft(proposed=[9], tokens=[9], length=1, looked_up=True), True),
        (Draft(proposed=[9], tokens=[9], length=1, looked_up=True, passed_over=(7,)), True),
        (Draft(proposed=[7], tokens=[7], length=1, looked_up=True, passed_over=(9,)), False),
    ],
    ids=["a wrong look-up", "and a right proposal", "a wrong proposal"],
)
def test_only_what_the_drafter_proposed_ends_its_try(draft: Draft, goes_on: bool) -> None:
    """Each request has a drafter's proposal beside a look-up, which is verified."""
    lengths = ThroughputLengths(dear(0.1, step=ONLY_PERFECT))
    crowd = entries(16, 6)
    assert all(asked(lengths, crowd))
    for entry in crowd:
        entry.draft = draft
        lengths.observe(entry, [7, 7])
    assert any(asked(lengths, crowd)) is goes_on
