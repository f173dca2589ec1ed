"""Token timing: AR at a steady pace, speculative bursts as the commits say, recorded runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.core import InvalidRequest
from paceline.roofline.acceptance import Geometric, acceptance_of
from paceline.roofline.timing import (
    arrival_events,
    autoregressive,
    evaluated_events,
    read_trace,
    speculative,
    two_panes,
)
from tests.roofline.golden import variance

STATED = {"tokens": 40, "ar_step_ms": 10, "step_ms": 12, "commits": [0.25, 0.75], "ttft_ms": 50}


def test_ar_gives_one_token_a_step() -> None:
    events = autoregressive(4, 10, ttft_ms=50)
    assert [(event.t_ms, event.tokens, event.own) for event in events] == [
        (50, 1, 1), (60, 1, 1), (70, 1, 1), (80, 1, 1)]  # fmt: skip


def test_a_burst_is_what_was_accepted_and_one_of_the_targets_own() -> None:
    commits = Geometric(0.8).commit_probabilities(7).tolist()
    events = speculative(500, 12, commits, ttft_ms=30, seed=5)
    assert sum(event.tokens for event in events) == 500
    steps = np.diff([event.t_ms for event in events])
    assert steps == pytest.approx(12, rel=0.01) and np.ptp(steps) < 1e-9
    assert events[0].drafted == 0 and events[0].tokens == 1
    for event in events[1:-1]:
        assert event.own == 1 and event.tokens == event.accepted + 1 and event.drafted == 7


def test_bursts_have_the_mean_and_the_spread_of_the_acceptance() -> None:
    acceptance = Geometric(0.8)
    commits = acceptance.commit_probabilities(7).tolist()
    bursts = [event.tokens for event in speculative(100_000, 1, commits)[1:-1]]
    assert np.mean(bursts) == pytest.approx(acceptance.expected_length(7), rel=0.02)
    assert np.var(bursts) == pytest.approx(variance(acceptance, 7), rel=0.03)


@pytest.mark.parametrize("tokens", [2, 3, 7, 30, 97, 400, 1500])
@pytest.mark.parametrize(("al", "draft_length"), [(4.5, 7), (4, 7), (2.6, 4), (1.3, 4), (9, 8)])
def test_every_seed_keeps_the_pace_and_the_al_that_are_stated(
    tokens: int, al: float, draft_length: int
) -> None:
    shares = acceptance_of({"al": al, "draft_length": draft_length})
    commits = shares.commit_probabilities(draft_length).tolist()
    drawn = set()
    for seed in range(40):
        events = speculative(tokens, 10 * al, commits, ttft_ms=70, seed=seed)
        assert sum(event.tokens for event in events) == tokens
        assert events[-1].t_ms == pytest.approx(70 + 10 * (tokens - 1))
        rounds = events[1:]
        nearest = (tokens - 1) / al
        assert abs(len(rounds) - nearest) <= 0.5 or len(rounds) == math.ceil(nearest)
        drawn.add(tuple(event.tokens for event in rounds))
    assert al == draft_length + 1 or tokens < 30 or len(drawn) > 1, "rounds vary with the seed"


def test_bursts_whose_total_cannot_fit_end_with_a_cut_one() -> None:
    bursts = [event.tokens for event in speculative(101, 1, [0] * 7 + [1])[1:]]
    assert bursts == [8] * 12 + [4]
    rare = [1 - 1e-6, *[0] * 1023, 1e-6]
    assert sum(event.tokens for event in speculative(100_000, 1, rare, seed=3)) == 100_000


def test_one_seed_always_draws_the_same_and_another_does_not() -> None:
    commits = Geometric(0.5).commit_probabilities(4).tolist()
    draws = [speculative(100, 1, commits, seed=seed) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_an_answer_that_ends_inside_a_draft_is_cut_there() -> None:
    last = speculative(4, 1, [0, 0, 0, 0, 1])[-1]
    assert (last.tokens, last.accepted, last.own, last.drafted) == (3, 3, 0, 4)


def test_no_speculation_is_as_ar() -> None:
    assert speculative(6, 10, [1.0], ttft_ms=5) == autoregressive(6, 10, 5)


def test_two_panes_are_an_answer_without_and_with_speculation() -> None:
    plain, drafted = two_panes(STATED)
    assert len(plain) == sum(event.tokens for event in drafted) == 40
    assert drafted[-1].t_ms < plain[-1].t_ms


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": 0}, "tokens: got 0"),
        ({"tokens": 10**9}, "tokens: got 1000000000"),
        ({"step_ms": 0}, "step_ms: got 0; expected milliseconds, above 0"),
        ({"ar_step_ms": -1}, "step_ms: got -1"),
        ({"ttft_ms": "soon"}, "ttft_ms: got 'soon'"),
        ({"commits": [0.5, 0.2]}, "commits: got [0.5, 0.2]; expected 1 to 1025 probabilities"),
        ({"commits": []}, "commits: got []"),
        ({"commits": [1.5, -0.5]}, "commits[0]: got 1.5"),
        ({"seed": -1}, "seed: got -1"),
        ({"speed": 2}, "speed: unknown field; did you mean seed?"),
    ],
)
def test_what_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        two_panes({**STATED, **change})
    assert said in str(error.value)


def test_what_has_no_default_must_be_there() -> None:
    with pytest.raises(InvalidRequest, match="commits: missing; it is required"):
        two_panes({name: value for name, value in STATED.items() if name != "commits"})


ROW = {
    "prompt": "one",
    "counted_tokens": 9,
    "seconds": {"ar": [0.8], "drafter/throughput": [0.3]},
    "rounds": {
        "drafter/throughput": [[1, 4, 3], [5, 4, 2], [8, 4, 4]],
        "drafter/full": [[1, 4, 3], [5, 4, 2], [8, 4, 4]],
    },
}


def test_a_row_of_an_evaluation_plays_its_own_rounds() -> None:
    alone, drafted = evaluated_events(ROW)
    assert [event.t_ms for event in alone] == pytest.approx([100 * i for i in range(9)])
    assert [event.tokens for event in drafted] == [1, 4, 3, 1]
    assert [event.accepted for event in drafted] == [0, 3, 2, 1]
    assert [event.t_ms for event in drafted] == pytest.approx([0, 100, 200, 300])


def test_tokens_that_arrive_together_are_one_burst() -> None:
    events = arrival_events([20.0, 31.0, 31.0, 31.0, 45.0])
    assert [(event.t_ms, event.tokens) for event in events] == [(20, 1), (31, 3), (45, 1)]


def test_a_trace_takes_the_rounds_that_the_report_counts(tmp_path: Path) -> None:
    result = {
        "format": "paceline-evaluation/1",
        "drafters": {"drafter": {"block": 4}},
        "settings": {"tokens": 256},
        "results": [{"rows": [{**ROW, "counted_tokens": 6}]}],
    }
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(result))
    assert read_trace(path) == {
        "accepted": [3, 2],
        "drafted": [4, 4],
    }  # the third starts behind the loop


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "other"}'])
def test_what_is_no_evaluation_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match="trace: got"):
        read_trace(path)
