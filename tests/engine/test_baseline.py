"""speedup_vs_ar: what the same tokens would have taken without speculation, by the cost table."""

from __future__ import annotations

import pytest

from paceline.core import Request, SamplingParams
from paceline.engine.baseline import Baseline
from paceline.engine.draft import Draft
from paceline.engine.scheduler import Scheduled
from paceline.engine.step_cost import StepCost

COST = StepCost([1, 8, 16], [1.0, 1.0, 2.0])


def step(committed: list[int], drafted: list[int], prompt: int = 0) -> tuple:
    """Requests that committed so many tokens after drafts of so many, and one with a prompt."""
    scheduled = []
    for index, draft in enumerate(drafted):
        request = Request(id=f"r{index}", prompt_ids=[1], params=SamplingParams(), drafter="d")
        scheduled.append(Scheduled(request, 0, 1, draft=Draft(tokens=[7] * draft, length=draft)))
    if prompt:
        request = Request(id="p", prompt_ids=[1] * 99, params=SamplingParams(), drafter="d")
        scheduled.append(Scheduled(request, 0, prompt))
    return scheduled, committed


def test_without_drafts_a_step_is_its_own_baseline_whatever_it_took() -> None:
    live = Baseline()
    for seconds in (1.0, 7.0, 0.3):
        live.add(COST, *step([1, 1], [0, 0]), seconds, 0.0)
    assert live.ar_seconds == live.seconds == pytest.approx(8.3) and live.speedup == 1


def test_a_drafter_that_is_merely_attached_shows_as_loss() -> None:
    live = Baseline()
    live.add(COST, *step([1], [0]), 1.0, 0.25)
    assert live.speedup == pytest.approx(0.8)


def test_accepted_tokens_would_have_taken_steps_of_their_own() -> None:
    live = Baseline()
    (ar_seconds,) = live.add(COST, *step([4], [7]), 1.0, 0.6)
    assert live.speedup == pytest.approx(4 / 1.6) == ar_seconds / 1.6


def test_rows_that_made_the_step_longer_are_no_time_of_ar() -> None:
    live = Baseline()
    live.add(COST, *step([1, 1], [7, 7]), 4.0, 0.0)  # 16 rows, twice what 2 take, at half the pace
    assert live.speedup == pytest.approx(0.5) and live.ar_seconds == pytest.approx(2.0)


def test_prompts_beside_it_take_the_same_either_way() -> None:
    live = Baseline()
    live.add(COST, *step([3], [3], prompt=12), 2.0, 0.0)
    plain = COST(13) + 2 * COST(1)
    assert live.ar_seconds == pytest.approx(plain)
    live.add(COST, *step([], [], prompt=12), 2.0, 0.0)
    assert live.seconds == 2.0, "a step of prompts alone is no decoding"


def test_the_recent_speedup_forgets() -> None:
    live = Baseline()
    for _ in range(400):
        live.add(COST, *step([4], [3]), 1.0, 0.0)
    assert live.speedup == pytest.approx(4.0)
    for _ in range(400):
        live.add(COST, *step([1], [3]), 1.0, 0.0)
    assert live.speedup == pytest.approx(1.0, rel=0.02)
    assert live.ar_seconds / live.seconds == pytest.approx(2.5)
