"""Where in an answer its rounds were."""

from __future__ import annotations

import pytest

from paceline.engines.answers import AnsweredRound, EngineAnswer


def answer(*bursts: int) -> EngineAnswer:
    """Make an answer whose tokens came in events of these sizes."""
    made = EngineAnswer()
    for at, size in enumerate(bursts):
        made.token_ids += [0] * size
        made.arrivals += [float(at)] * size
    return made


def test_rounds_follow_each_other_where_every_step_drafts() -> None:
    made = answer(1, 3, 1, 2)
    made.add_rounds([4, 4, 4], [2, 0, 1])
    assert made.rounds == [AnsweredRound(1, 4, 2), AnsweredRound(4, 4, 0), AnsweredRound(5, 4, 1)]


def test_steps_without_a_draft_stand_between_rounds() -> None:
    made = answer(1, 1, 1, 3, 1, 4)
    made.add_rounds([4, 4], [2, 3])
    assert made.rounds == [AnsweredRound(3, 4, 2), AnsweredRound(7, 4, 3)]


def test_a_last_round_that_the_end_cut_off_keeps_its_place() -> None:
    made = answer(1, 1, 3, 2)  # the last round committed 4 tokens, and the text ended after 2
    made.add_rounds([4, 4], [2, 3])
    assert made.rounds == [AnsweredRound(2, 4, 2), AnsweredRound(5, 4, 3)]


def test_events_may_hold_several_rounds() -> None:
    made = answer(1, 4, 2)
    made.add_rounds([4, 4, 4], [2, 0, 1])
    assert [each.position for each in made.rounds or ()] == [1, 4, 5]


def test_times_of_an_answer() -> None:
    made = answer(1, 3, 1)
    made.started = -0.5
    assert made.ttft == 0.5 and made.tpot == pytest.approx(2 / 4)
    assert answer(1).tpot is None
