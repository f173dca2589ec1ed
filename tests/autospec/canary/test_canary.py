"""A canary's whole life: steps, verdicts, guards, holds, and a crash in between."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from paceline.autospec.canary import (
    CanaryAction,
    CanaryRequests,
    CanaryState,
    CanaryVerdict,
    advanced,
    begun,
    judge,
    observed,
)
from paceline.autospec.policy import CanaryPolicy
from paceline.autospec.sums import N, ratio_of
from paceline.core import InvalidRequest
from tests.autospec.traffic import drawn_seeds

POLICY = CanaryPolicy()
HOUR = 3600.0


def hour_of(
    seed: int, hour: int, percent: float, *, al: float = 1.0, tpot: float = 1.0,
    ttft: float = 1.0, errors: float = 0.002, invalid: float = 0.01, rate: int = 500,
) -> CanaryRequests:  # fmt: skip
    """Return an hour of requests; the canary differs from the live drafter by these factors."""
    rng = np.random.default_rng((seed, hour))
    count = rng.poisson(rate)
    is_canary = rng.random(count) < percent / 100
    rounds = 1.0 + rng.geometric(1 / 25, count)
    level = 4 * (1 + 0.06 * np.sin(hour / 24 * 2 * np.pi)) * np.where(is_canary, al, 1)
    mean = np.clip(level + 0.9 * rng.standard_normal(count), 1.05, None)
    tokens = np.maximum(rounds, rng.standard_gamma(6 * rounds) * mean / 6)
    first = rng.lognormal(-1.5, 0.5, count) * np.where(is_canary, ttft, 1)
    spent = rounds * 0.02 * np.exp(0.2 * rng.standard_normal(count)) * np.where(is_canary, tpot, 1)
    bound = rng.random(count) < 0.3
    wrong = rng.random(count) < np.where(is_canary, invalid, 0.01)
    return CanaryRequests(
        time=HOUR * hour + np.sort(rng.random(count)) * HOUR,
        is_canary=is_canary,
        accepted=tokens - rounds,
        rounds=rounds,
        tokens=tokens,
        ttft=first,
        total=first + spent,
        failed=rng.random(count) < np.where(is_canary, errors, 0.002),
        valid=np.where(bound, 1.0 - wrong, np.nan),
    )


def live_through(
    seed: int, hours: int = 24 * 5, policy: CanaryPolicy = POLICY, **kind: float
) -> tuple[CanaryState, list[CanaryAction], str]:
    """Return the end of a canary, what was done in each hour, and the last reasons."""
    state, actions, why = begun("new", "old", 0.0, policy), [], ""
    for hour in range(hours):
        state = observed(state, hour_of(seed, hour, state.percent, **kind))  # type: ignore[arg-type]
        judgement = judge(state, (hour + 1) * HOUR, policy)
        state = advanced(state, judgement, (hour + 1) * HOUR, policy)
        actions.append(judgement.action)
        why = " ".join(judgement.why)
        if state.ended:
            break
    return state, actions, why


def test_a_better_drafter_goes_through_all_steps() -> None:
    state, actions, why = live_through(1, al=1.08, tpot=0.93)
    assert state.ended == "pass"
    assert [step.percent for step in state.steps] == [1, 5, 25, 50]
    assert actions.count(CanaryAction.ADVANCE) == 3 and actions[-1] is CanaryAction.PROMOTE
    assert len(actions) >= POLICY.cycle_hours
    assert "Tokens per round" in why and "better" in why


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ({"al": 0.85}, "Tokens per round"),
        ({"tpot": 1.3}, "TPOT"),
        ({"ttft": 1.5}, "Time to first token"),
        ({"errors": 0.1}, "Failed requests"),
        ({"invalid": 0.3}, "Answers invalid under their schema"),
    ],
)
def test_whatever_is_surely_worse_is_rolled_back(kind: dict[str, float], said: str) -> None:
    state, actions, why = live_through(2, **kind)
    assert state.ended == "fail" and actions[-1] is CanaryAction.ROLL_BACK
    assert why.startswith(said) and "worse" in why


def test_time_and_requests_are_waited_for() -> None:
    state = begun("new", "old", 0.0, POLICY)
    early = judge(state, 60.0, POLICY)
    assert early.verdict is CanaryVerdict.INCONCLUSIVE and early.action is CanaryAction.HOLD
    assert "0 canary requests in this step; 50 are needed." in early.why
    assert "This step is 0.0 hours old; 1 are needed." in early.why


def test_without_a_conclusion_it_holds_and_says_so() -> None:
    policy = CanaryPolicy.read({"guard": 0.0005, "longest_days": 3.0})
    state, actions, why = live_through(5, hours=24 * 4, policy=policy, al=1.01, rate=100)
    assert not state.ended
    assert set(actions[-5:]) == {CanaryAction.HOLD}
    assert "must surely be less than 0.1% worse" in why
    assert "It has run for more than 3 days: promote or withdraw." in why


def test_after_a_crash_the_same_decisions_follow() -> None:
    """The state is written after each look, and requests may be read twice."""
    whole, actions, _ = live_through(4, al=1.03)
    state, again = begun("new", "old", 0.0, POLICY), []
    for hour in range(len(actions)):
        requests = hour_of(4, hour, state.percent, al=1.03)
        half = len(requests.time) // 2
        first = replace(requests, **{f: getattr(requests, f)[:half] for f in requests.__slots__})
        state = observed(state, first)
        state = CanaryState.read(json.loads(json.dumps(state.model_dump())))
        state = observed(observed(state, requests), requests)
        judgement = judge(state, (hour + 1) * HOUR, POLICY)
        state = advanced(state, judgement, (hour + 1) * HOUR, POLICY)
        again.append(judgement.action)
    assert again == actions and state.ended == whole.ended
    assert state.steps[0].canary.errors == whole.steps[0].canary.errors


def test_the_end_is_the_end() -> None:
    state, _, _ = live_through(2, al=0.85)
    assert observed(state, hour_of(9, 900, 50.0)) == state


def test_a_state_that_nobody_wrote_is_refused() -> None:
    good = begun("new", "old", 0.0, POLICY).model_dump()
    good["steps"][0]["live"]["tpot"] = [1.0, 2.0]
    with pytest.raises(InvalidRequest, match="6 sums"):
        CanaryState.read(good)


def test_answers_that_come_at_once_are_timed_as_a_whole() -> None:
    """Behind Envoy, nobody sees when the first token of such an answer was there."""
    streamed = hour_of(1, 0, 50.0)
    at_once = replace(streamed, ttft=np.full_like(streamed.ttft, np.nan))
    sums = at_once.sums(np.ones_like(streamed.is_canary))
    assert sums["ttft"][N] == 0 and sums["tpot"][N] > 400
    good = ~streamed.failed & (streamed.tokens > 1)
    expected = streamed.total[good].sum() / streamed.tokens[good].sum()
    assert ratio_of(sums["tpot"]) == pytest.approx(expected)


@pytest.mark.slow
def test_whole_canaries_fail_seldom_by_chance() -> None:
    """All metrics together, looked at every hour while the steps rise."""
    seeds = drawn_seeds(300)
    ends = [live_through(seed, rate=300)[0].ended for seed in seeds]
    failed = ends.count("fail") / len(ends)
    print(f"{len(ends)} canaries as good as live: {failed:.1%} failed")
    assert failed <= 0.075, seeds[0]  # alpha is 5 %; 300 runs scatter by 1.3 %
