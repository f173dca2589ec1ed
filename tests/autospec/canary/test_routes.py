"""Which requests a canary gets."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.autospec.canary import canary_rule, place_of


def test_places_are_spread_evenly_and_stay_for_ever() -> None:
    places = np.array([place_of("canary-7", f"session-{index}") for index in range(20_000)])
    assert places.min() >= 0 and places.max() < 1
    counts = np.histogram(places, 20, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 50  # χ², 19 degrees of freedom: p = 0.0001
    assert place_of("canary-7", "session-1") == pytest.approx(0.6541, abs=1e-4)


def test_another_salt_gives_other_places() -> None:
    places = [[place_of(salt, f"{index}") for index in range(2000)] for salt in ("a", "b")]
    assert abs(np.corrcoef(places)[0, 1]) < 0.1


def test_rules_are_those_of_the_routes_api() -> None:
    rule = canary_rule({"app": "x"}, "old", "new", 25.0)
    assert rule == {"match": {"app": "x"}, "shares": {"new": 0.25, "old": 0.75}}
    assert next(iter(rule["shares"])) == "new"
    assert canary_rule({}, "old", "new", 100.0)["shares"] == {"new": 1.0}
