"""Tune on engines whose cost and acceptance are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from paceline.core import InvalidRequest
from paceline.engines.tune import Advice, TuneSettings, tune

from .simulated import Law, SimulatedEngine

PROMPTS = [[{"role": "user", "content": f"question {index}"}] for index in range(40)]
HIGH = (0.85, 0.72, 0.6, 0.5, 0.42, 0.35, 0.3)
MIDDLE = (0.65, 0.42, 0.28, 0.18, 0.11, 0.07, 0.04)
LOW = (0.45, 0.2, 0.09, 0.04, 0.02, 0.01, 0.005)
SURVIVALS = {"high": HIGH, "middle": MIDDLE, "low": LOW}
CPU = Law()
LAWS = {
    "a CPU": CPU,
    "a GPU": Law(0.008, 2e-5, 1e-5, 128, 0.0012, 1e-6),
    "bound by rows": Law(0.02, 0.0, 0.0025, 1, 0.002, 0.0004),
    "a costly drafter": Law(drafter=0.02, drafter_row=0.001),
    "a drafter that long texts slow down": Law(drafter_context=2e-6),
}
SEEDS = range(4)


def run(engine: SimulatedEngine, **settings: float) -> Advice:
    return tune(engine, PROMPTS, TuneSettings(**settings), engine.clock)  # type: ignore[arg-type]


def share_of_best(engine: SimulatedEngine, requests: int, draft_len: int) -> float:
    speeds = [engine.true_speed(requests, length) for length in range(engine.draft_len + 1)]
    return speeds[draft_len] / max(speeds)


@pytest.mark.parametrize("survival", SURVIVALS.values(), ids=SURVIVALS)
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("by_request", [False, True], ids=["whole", "by request"])
def test_the_recommended_settings_are_near_the_best(
    law: Law, survival: tuple[float, ...], by_request: bool
) -> None:
    shares = []
    for seed in SEEDS:
        engine = SimulatedEngine(law, survival, seed=seed, by_request=by_request)
        advice = run(engine, seconds=90)
        assert [setting.requests for setting in advice.settings] == [1, 2, 4, 8]
        shares += [share_of_best(engine, s.requests, s.draft_len) for s in advice.settings]
    assert np.mean(shares) > 0.97
    assert min(shares) > 0.9


def test_the_gain_over_ar_lies_within_its_interval_nearly_always() -> None:
    inside = []
    for seed in range(12):
        engine = SimulatedEngine(CPU, HIGH, seed=seed)
        for setting in run(engine).settings:
            n, length = setting.requests, setting.draft_len
            true = engine.true_speed(n, length) / engine.true_speed(n, 0)
            inside.append(setting.over_ar.low * 0.97 <= true <= setting.over_ar.high * 1.03)
    assert np.mean(inside) > 0.8


@pytest.mark.parametrize("cut", [{"cuts": False}, {"tells_rounds": False}], ids=str)
def test_engines_that_tell_or_do_less_are_tuned_too(cut: dict[str, bool]) -> None:
    shares = []
    for seed in SEEDS:
        engine = SimulatedEngine(LAWS["a GPU"], MIDDLE, seed=seed, **cut)  # type: ignore[arg-type]
        shares += [share_of_best(engine, s.requests, s.draft_len) for s in run(engine).settings]
    assert np.mean(shares) > 0.97


def test_a_drafter_that_cannot_be_timed_is_said_to_be_guessed() -> None:
    engine = SimulatedEngine(CPU, HIGH, max_model_len=None)
    known, guessed = run(SimulatedEngine(CPU, HIGH)), run(engine)
    assert not known.notes and any("not measured" in note for note in guessed.notes)

    def width(advice: Advice) -> float:
        return advice.settings[0].over_ar.high - advice.settings[0].over_ar.low

    assert width(guessed) > 1.5 * width(known)


def test_what_long_texts_cost_the_drafter_is_not_taken_off_steps_of_short_ones() -> None:
    ratios = []
    for seed in SEEDS:
        engine = SimulatedEngine(Law(drafter_context=3e-6), HIGH, seed=seed, noise=0.01)
        advice = run(engine, seconds=90)
        ratios += [
            setting.speeds[0] * engine.true_seconds(setting.requests, 0)
            for setting in advice.settings
        ]
    assert np.mean(ratios) == pytest.approx(1, abs=0.04)
    assert max(ratios) < 1.15


def test_todays_setting_is_compared_with() -> None:
    engine = SimulatedEngine(CPU, LOW, draft_len=7)
    setting = run(engine).settings[-1]
    true = engine.true_speed(8, setting.draft_len) / engine.true_speed(8, 7)
    assert setting.over_present.mean == pytest.approx(true, rel=0.1) and true > 1.5


def test_speculation_is_left_off_from_where_it_does_not_pay() -> None:
    advice = run(SimulatedEngine(LAWS["bound by rows"], LOW), seconds=90)
    lengths = {setting.requests: setting.draft_len for setting in advice.settings}
    assert lengths[1] >= 1 and lengths[8] == 0
    assert advice.off_from in (2, 4, 8)  # two at once gain 5% at most
    nothing = run(SimulatedEngine(LAWS["a costly drafter"], LOW))
    assert not nothing.pays and nothing.off_from == 1 and nothing.table == [(1, 8, 0)]


def test_the_table_covers_every_batch_size_once() -> None:
    for seed in SEEDS:
        table = run(SimulatedEngine(CPU, MIDDLE, seed=seed), at_once=16).table
        assert table[0][0] == 1 and table[-1][1] == 16
        assert all(now[0] == before[1] + 1 for before, now in pairwise(table))
        assert all(now[2] != before[2] for before, now in pairwise(table))


@pytest.mark.parametrize("seconds", [10.0, 30.0])
def test_the_time_is_kept_to_and_larger_sizes_are_left_out(seconds: float) -> None:
    engine = SimulatedEngine(LAWS["bound by rows"], MIDDLE)
    advice = run(engine, seconds=seconds, at_once=64)
    assert advice.seconds < 1.6 * seconds
    assert advice.settings[0].requests == 1 and advice.settings[-1].requests < 64
    assert any("not timed" in note and "64 at once" in note for note in advice.notes)


def test_an_engine_without_a_drafter_is_refused() -> None:
    engine = SimulatedEngine(CPU, HIGH)
    engine.description = replace(engine.description, draft_len=0)
    with pytest.raises(InvalidRequest, match="runs with a drafter"):
        run(engine)
    with pytest.raises(InvalidRequest, match="at least 2 prompts"):
        tune(SimulatedEngine(CPU, HIGH), PROMPTS[:1], TuneSettings())  # type: ignore[arg-type]
