"""Tune on engines whose cost and acceptance are known: its settings are among the best there are."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core import InvalidRequest
from paceline.engines.tune import Advice, TuneSettings, tune

from .simulated import Law, SimulatedEngine

PROMPTS = [[{"role": "user", "content": f"question {index}"}] for index in range(40)]
HIGH = (0.85, 0.72, 0.6, 0.5, 0.42, 0.35, 0.3)
LOW = (0.45, 0.2, 0.09, 0.04, 0.02, 0.01, 0.005)
MIDDLE = (0.65, 0.42, 0.28, 0.18, 0.11, 0.07, 0.04)
LAWS = {
    "a CPU": Law(),
    "a GPU": Law(0.008, 2e-5, 1e-5, 128, 0.0012, 1e-6),
    "a bound one": Law(0.02, 0.0, 0.0025, 1, 0.002, 0.0004),
    "a costly drafter": Law(drafter=0.02, drafter_row=0.001),
}


def run(engine: SimulatedEngine, **settings: float) -> Advice:
    return tune(engine, PROMPTS, TuneSettings(**settings), engine.clock)  # type: ignore[arg-type]


@pytest.mark.parametrize("survival", [HIGH, MIDDLE, LOW], ids=["high", "middle", "low"])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("by_request", [False, True], ids=["whole", "by request"])
def test_the_recommended_settings_are_near_the_best(
    law: Law, survival: tuple[float, ...], by_request: bool
) -> None:
    ratios = []
    for seed in range(5):
        engine = SimulatedEngine(law, survival, seed=seed, by_request=by_request)
        for setting in run(engine).settings:
            speeds = [engine.true_speed(setting.requests, k) for k in range(8)]
            ratios.append(speeds[setting.draft_len] / max(speeds))
    assert min(ratios) > 0.9 and np.mean(ratios) > 0.985


def test_the_gain_over_ar_is_within_its_interval_nearly_always() -> None:
    inside = []
    for seed in range(20):
        engine = SimulatedEngine(LAWS["a CPU"], HIGH, seed=seed)
        for setting in run(engine).settings:
            n, k = setting.requests, setting.draft_len
            true = engine.true_speed(n, k) / engine.true_speed(n, 0)
            low, high = setting.over_ar.low, setting.over_ar.high
            inside.append(low * 0.98 <= true <= high * 1.02)
    assert np.mean(inside) > 0.8
