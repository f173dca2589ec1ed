"""The parts of tune: steps from arrivals, acceptance by position, the law of a step's seconds."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.engines.answers import AnsweredRound, EngineAnswer
from paceline.engines.tune.acceptance import Acceptance, by_context, rounds_of
from paceline.engines.tune.costs import DrafterSeconds, RoundCosts, separated
from paceline.engines.tune.law import Point, StepLaw
from paceline.engines.tune.steps import steps_of


def answer(started: float, *bursts: tuple[float, int]) -> EngineAnswer:
    arrivals = [at for at, count in bursts for _ in range(count)]
    ids = [1] * len(arrivals)
    return EngineAnswer(started=started, arrivals=arrivals, token_ids=ids, prompt_tokens=10)


def test_only_steps_with_all_requests_and_no_prompt_count() -> None:
    first = answer(0.0, (1.0, 1), (1.1, 2), (1.5, 1), (1.6, 3), (1.7, 1), (1.8, 1))
    second = answer(1.2, (1.5, 1), (1.6, 1), (1.7, 2))
    steps = steps_of([first, second], 2)
    assert [step.seconds for step in steps] == pytest.approx([0.1, 0.1])
    assert [step.tokens for step in steps] == [4, 3]
    assert [step.seconds for step in steps_of([first, second], 1)] == pytest.approx([0.1, 0.1])


def test_tokens_of_two_steps_that_came_at_once_are_no_longer_step() -> None:
    quick = answer(0.0, *((1 + 0.1 * step, 1) for step in range(9)))
    behind = answer(0.0, (1.0, 1), *((1 + 0.2 * step, 2) for step in range(1, 5)))
    assert [step.seconds for step in steps_of([quick, behind], 2)] == pytest.approx([0.1] * 8)


def test_a_step_that_was_held_up_is_left_out() -> None:
    times = [1.0, 1.1, 1.2, 1.3, 2.3, 2.4, 2.5]
    steps = steps_of([answer(0.0, *((at, 1) for at in times))], 1)
    assert len(steps) == 5 and max(step.seconds for step in steps) < 0.2


def test_long_drafts_tell_the_acceptance_of_shorter_ones() -> None:
    rng = np.random.default_rng(0)
    rates = (0.8, 0.6, 0.5)

    def drawn(length: int) -> AnsweredRound:
        accepted = next((k for k in range(length) if rng.random() > rates[k]), length)
        return AnsweredRound(0, length, accepted)

    long = Acceptance.of([[drawn(3) for _ in range(400)] for _ in range(10)], 3)
    short = Acceptance.of([[drawn(2) for _ in range(400)] for _ in range(10)], 2)
    assert long.mean_lengths[2] == pytest.approx(short.mean_lengths[2], rel=0.03)
    assert long.survival == pytest.approx([0.8, 0.48, 0.24], abs=0.03)
    low, high = np.percentile(long.lengths(300)[:, 3], [2.5, 97.5])
    assert low < 2.52 < high and high - low < 0.2


def test_drafts_that_were_shorter_do_not_count_against_later_positions() -> None:
    mixed = Acceptance.of([[AnsweredRound(0, 1, 1)] * 9 + [AnsweredRound(0, 2, 2)]], 2)
    assert mixed.survival == pytest.approx([1.0, 1.0])


def test_arrivals_stand_for_rounds_where_the_engine_tells_none() -> None:
    untold = answer(0.0, (1.0, 1), (1.1, 3), (1.2, 1), (1.3, 9), (1.4, 2))
    # nine tokens are more than a draft of three and a bonus: two rounds that came together
    assert rounds_of(untold, 3) == [
        AnsweredRound(1, 3, 2),
        AnsweredRound(4, 3, 0),
        AnsweredRound(14, 1, 1),  # the answer ended: nobody judged the rest of the draft
    ]


def test_the_end_of_short_answers_hides_no_acceptance() -> None:
    """Half of the drafts of three stand whole, and the answers end at every place."""
    rng, answers = np.random.default_rng(5), []
    for _ in range(3000):
        room, bursts = 6, [(1.0, 1)]
        while room:
            tokens = min(room, 4 if rng.random() < 0.5 else 1)
            bursts.append((bursts[-1][0] + 0.1, tokens))
            room -= tokens
        answers.append(answer(0.0, *bursts))
    seen = Acceptance.of([rounds_of(each, 3) for each in answers], 3)
    assert seen.survival == pytest.approx([0.5] * 3, abs=0.03)


def test_acceptance_is_told_by_the_tokens_before_a_round() -> None:
    long = answer(0.0, *((1 + step, 1) for step in range(200)))
    long.rounds = [AnsweredRound(place, 2, 2 if place < 100 else 0) for place in range(1, 200, 3)]
    bins = by_context([long], 2)
    assert list(bins) == [0, 128]
    assert bins[0].mean_lengths[-1] > bins[128].mean_lengths[-1] == 1


def test_a_law_with_a_knee_is_found_again() -> None:
    law = StepLaw(0.02, 0.0005, 0.0001, 0.001, 16)
    points = [Point(n, k) for n in (1, 2, 4, 8) for k in (0, 3, 7)]
    fitted = StepLaw.fit({point: law(point) for point in points})
    for point in (Point(1, 5), Point(2, 6), Point(8, 2)):
        assert fitted(point) == pytest.approx(law(point), rel=0.02)


def test_no_part_of_a_law_is_negative() -> None:
    falling = {Point(1, 0): 0.03, Point(1, 3): 0.02, Point(1, 7): 0.01}
    law = StepLaw.fit(falling)
    assert min(law.base, law.per_request, law.per_row, law.beyond) >= 0


def test_measured_rounds_stay_as_they_are_and_others_lie_between() -> None:
    costs = RoundCosts({1: np.array([0.02])}, {
        Point(1, 2): np.array([0.03]), Point(1, 6): np.array([0.05]),
    })  # fmt: skip
    filled = costs.fill(range(8))
    assert filled[Point(1, 2)] == pytest.approx(0.03) and filled[Point(1, 6)] == pytest.approx(0.05)
    assert 0.035 < filled[Point(1, 4)][0] < 0.045
    assert filled[Point(1, 7)][0] > 0.05


def test_the_drafters_part_is_taken_off() -> None:
    drafter = DrafterSeconds.of({Point(1, 3): np.array([0.008]), Point(4, 3): np.array([0.02])})
    assert drafter(Point(2, 3)) == pytest.approx(0.012)
    rounds = {Point(2, 3): np.array([0.05])}
    costs = separated(rounds, {2: np.array([0.04])}, drafter)
    assert costs.plain[2] == pytest.approx(0.04 - 0.012)
    # without drafts the drafter still has a row of each request
    assert costs.drafted[Point(2, 0)] == pytest.approx(0.028 + drafter(Point(2, 0))[0])
