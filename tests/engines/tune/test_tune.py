"""Tune on engines whose cost and acceptance are known."""

from __future__ import annotations

import numpy as np
import pytest

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
        advice = run(engine)
        assert [setting.requests for setting in advice.settings] == [1, 2, 4, 8]
        shares += [share_of_best(engine, s.requests, s.draft_len) for s in advice.settings]
    assert np.mean(shares) > 0.97
    assert min(shares) > 0.9
