"""What a server runs, as a scenario of the calculator: its own costs and what Live has seen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from paceline.engine.costs import Costs
from paceline.engine.step_cost import StepCost
from paceline.roofline.scenario import predict
from paceline.server import this_server
from paceline.server.live import Live
from tests.server.conftest import listening
from tests.server.test_real_engine import tiny_engine

PARTS = ("model", "hardware", "precision", "calibration", "context")


GRID = [1, 2, 4, 8, 16, 32, 64]
STEP = StepCost(GRID, [1e-3 + 4e-5 * rows for rows in GRID], per_request=1e-5)


@pytest.fixture(scope="module")
def engine() -> Any:
    served = tiny_engine()
    served.engine.scheduler.cost = STEP  # what a machine measures changes from day to day
    served.engine.drafting.use(Costs(STEP))
    return served


@pytest.fixture(scope="module")
def url(engine: Any) -> Iterator[str]:
    with listening(engine) as running:
        yield running.url


def served(url: str) -> dict[str, Any]:
    answer = httpx.get(f"{url}/ui/this-server")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def scenario(found: dict[str, Any]) -> dict[str, Any]:
    drafters = [
        {
            **{key: value for key, value in drafter.items() if value is not None},
            "acceptance": {k: v for k, v in drafter["acceptance"].items() if v is not None},
        }
        for drafter in found["drafters"]
    ]
    return {**{part: found[part] for part in PARTS}, "drafters": drafters}


def test_the_prediction_is_in_the_engines_own_step_times(url: str) -> None:
    found = served(url)
    answer = predict({**scenario(found), "context": 1})  # costs are timed over empty contexts
    assert answer["ar"]["calibrated"]["step_ms"] == pytest.approx(1e3 * STEP(1), rel=0.05)
    assert answer["calibration"]["name"] == "fitted"
    assert 0 <= found["median_error"] < 0.05
    rates = [answer["ar"][tier]["tokens_per_second_per_request"] for tier in answer["ar"]]
    assert rates[0] >= rates[1] > 0  # no step beats the roofline


def test_a_drafter_that_has_drafted_has_the_al_that_live_saw(url: str) -> None:
    assert served(url)["seen"] == {}
    assert {d["acceptance"]["alpha"] for d in served(url)["drafters"]} == {0.5}
    body = {"prompt": [1, 2, 3, 4] * 8, "max_tokens": 64, "temperature": 0,
            "speculative": {"drafter": "ngram", "policy": "fixed"}}  # fmt: skip
    assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
    found = served(url)
    live = httpx.get(f"{url}/ui/live").json()
    (group,) = [group for group in live["groups"] if group["drafter"] == "ngram"]
    counts = group["speculation"]
    seen = found["seen"]["ngram"]
    al = 1 + counts["accepted_tokens"] / counts["draft_rounds"]
    assert (seen["rounds"], seen["acceptance_length"]) == (counts["draft_rounds"], al)
    (ngram,) = [drafter for drafter in found["drafters"] if drafter["name"] == "ngram"]
    assert ngram["acceptance"]["al"] == pytest.approx(al, abs=1e-3)
    assert predict(scenario(found))["drafters"][0]["fits"] == "drafts"


def test_fits_wait_for_each_other_and_are_kept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fit, running, most = this_server.fit_server, 0, list[int]()
    snapshot = Live.snapshot

    def counted(engine: Any) -> Any:
        nonlocal running
        running += 1
        most.append(running)
        time.sleep(0.05)
        try:
            return fit(engine)
        finally:
            running -= 1

    def on_the_loop(live: Live, window: float, since: float) -> Any:
        asyncio.get_running_loop()  # raises in a thread, where counters may change meanwhile
        assert since > time.time(), "the scenario has no use for the points of curves"
        return snapshot(live, window, since)

    monkeypatch.setattr(this_server, "fit_server", counted)
    monkeypatch.setattr(Live, "snapshot", on_the_loop)
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(served, [url] * 4))) == 4
        assert len(most) <= 1
        monkeypatch.setattr(this_server, "FRESH", -1.0)
        list(pool.map(served, [url] * 3))
    assert len(most) >= 3 and max(most) == 1


def test_a_small_token_budget_leaves_enough_to_fit(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = StepCost([1, 2, 4], [1e-3, 1.1e-3, 1.3e-3])  # of one request: three points
    monkeypatch.setattr(engine.engine, "config", replace(engine.engine.config, max_num_seqs=1))
    monkeypatch.setattr(engine.engine.scheduler, "cost", small)
    fit = this_server.fit_server(engine.engine)
    assert fit.ar_seconds == 1e-3 and fit.median_error < 0.05
