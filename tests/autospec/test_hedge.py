"""Requests go to the drafter that full information favours, and the reason says so."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.autospec.hedge import DrafterEvidence, choose_drafters, expected_length
from paceline.autospec.policy import RoutingPolicy
from paceline.core import InvalidRequest

POLICY = RoutingPolicy()


def batch(source: str = "scores of 100 traces", **al: float) -> DrafterEvidence:
    return DrafterEvidence(source, al, 8.0)


def test_the_better_drafter_gets_nearly_all_after_some_evidence() -> None:
    evidence = [batch(suffix=4.6, app=3.1)] * 60
    choice = choose_drafters("c", ["app", "suffix"], evidence, POLICY)
    assert choice.best == "suffix" and choice.shares["suffix"] > 0.8
    assert sum(choice.shares.values()) == pytest.approx(1)
    assert "c: suffix gets" in choice.why and "suffix 4.60, app 3.10" in choice.why


def test_little_evidence_moves_little() -> None:
    choice = choose_drafters("c", ["app", "suffix"], [batch(suffix=4.6, app=3.1)], POLICY)
    assert 0.5 < choice.shares["suffix"] < 0.6
    nothing = choose_drafters("c", ["app", "suffix"], [], POLICY)
    assert nothing.shares == {"app": 0.5, "suffix": 0.5} and "nothing is known" in nothing.why


def test_what_was_long_ago_is_forgotten() -> None:
    evidence = [batch(a=5.0, b=3.0)] * 200 + [batch(a=3.0, b=5.0)] * 120
    assert choose_drafters("c", ["a", "b"], evidence, POLICY).best == "b"


def test_regret_is_that_of_hedge() -> None:
    """Against any sequence, Hedge loses at most ln(N)/η + ηT/8 to the best drafter."""
    rng = np.random.default_rng(1)
    policy = RoutingPolicy.read({"rate": 0.3, "memory": 1e12, "least_share": 0.0})
    evidence = [batch(**dict(zip("abc", 1 + 7 * rng.random(3), strict=True))) for _ in range(80)]
    earned = best = 0.0
    for index, item in enumerate(evidence):
        shares = choose_drafters("c", ["a", "b", "c"], evidence[:index], policy).shares
        earned += sum(share * (item.al[name] - 1) / 7 for name, share in shares.items())
    best = max(sum((item.al[name] - 1) / 7 for item in evidence) for name in "abc")
    assert best - earned <= np.log(3) / 0.3 + 0.3 * 80 / 8


def test_a_drafter_that_a_batch_lacks_is_neither_helped_nor_hurt() -> None:
    known = [batch(a=4.0, b=4.0)] * 10
    lacking = [*known, batch("live requests of Monday", a=4.0)]
    assert choose_drafters("c", ["a", "b"], lacking, POLICY).shares == {"a": 0.5, "b": 0.5}


def test_small_shares_are_dropped_and_one_drafter_gets_all() -> None:
    choice = choose_drafters("c", ["a", "b"], [batch(a=7.0, b=1.0)] * 100, POLICY)
    assert choice.shares == {"a": 1.0}
    assert "only drafter" in choose_drafters("c", ["a"], [batch(a=2.0)], POLICY).why


def test_expected_length_counts_the_bonus_token() -> None:
    assert expected_length([0.5, 0.5]) == pytest.approx(1.75)
    assert expected_length([]) == 1.0


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="drafters"):
        choose_drafters("c", [], [], POLICY)
    with pytest.raises(InvalidRequest, match="ceiling"):
        choose_drafters("c", ["a", "b"], [DrafterEvidence("x", {"a": 1.0}, 1.0)], POLICY)
