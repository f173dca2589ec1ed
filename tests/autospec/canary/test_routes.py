"""Which requests a canary gets, by the server's own routes."""

from __future__ import annotations

import pytest

from paceline.autospec.canary import canary_rule
from paceline.autospec.policy import CanaryPolicy
from paceline.core.cohorts import Cohort
from paceline.engine.routes import RouteKey, Routes

COHORT = Cohort("m", "shop", "de", "eu")


def test_each_step_adds_sessions_and_takes_none_away() -> None:
    before: set[str] = set()
    for percent in CanaryPolicy().steps:
        rule = canary_rule({"app": "shop"}, "old", "new", percent)
        routes = Routes.read({"default": "old", "cohorts": [rule], "salt": "canary-7"})
        keys = [RouteKey(COHORT, f"session-{index}") for index in range(4000)]
        chosen = {key.session for key in keys if routes.choose(key).drafter == "new"}
        assert before <= chosen
        assert len(chosen) / 4000 == pytest.approx(percent / 100, abs=0.03)
        before = chosen


def test_other_cohorts_stay_with_the_default() -> None:
    rule = canary_rule({"app": "shop"}, "old", "new", 100.0)
    routes = Routes.read({"default": "old", "cohorts": [rule]})
    other = RouteKey(Cohort("m", "chat", "de", "eu"), "s")
    assert routes.choose(other).drafter == "old"
    assert routes.choose(RouteKey(COHORT, "s")).drafter == "new"
