"""Cohorts are shared out among live versions by what each is worth there, and requests say why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.autospec.loop import LoopAction
from paceline.autospec.loop.routed import routed_cohorts
from paceline.autospec.policy import AutospecPolicy
from tests.autospec.loop.worlds import CHAT, HOUR, POLICY, SHOP, World


def policy(**routing: object) -> AutospecPolicy:
    values = {"enabled": True, **routing}
    return POLICY.model_copy(update={"routing": POLICY.routing.model_copy(update=values)})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two versions are live: `base` for all, and `shop` for one cohort, where it is better."""
    made = World(tmp_path, policy())
    made.live("base")
    made.live("shop", cohort=SHOP)
    made.al = {"base/shop": 2.4, "shop/shop": 3.4, "base/chat": 2.6, "shop/chat": 2.6}
    yield made
    made.close()


def scored(world: World, cohort: str, rounds: int = 5000, **al: float) -> None:
    for name, value in al.items():
        world.store.add_score(name, cohort, value, value - 0.05, value + 0.05, rounds, "answers")


def later(world: World) -> None:
    """Let more than an hour pass, which is when it looks anew."""
    world.now += HOUR
    world.turn()


def shares(world: World) -> dict[str, dict[str, float]]:
    return {routed.cohort: dict(routed.shares) for routed in routed_cohorts(world.store)}


def test_a_cohort_gets_the_drafter_that_scores_favour(world: World) -> None:
    world.turn()
    assert shares(world) == {}, "nothing is known, so each keeps its own"
    scored(world, CHAT, base=2.6, shop=4.1)
    later(world)
    assert shares(world) == {CHAT: {"shop": 1.0}}
    (rule,) = [rule for rule in world.serving.routes.cohorts if rule.match["app"] == "chat"]
    assert rule.shares == {"shop": 1.0} and rule.why == f"{CHAT} by scores"
    (noted,) = [
        n for n in world.loop.journal.decisions(lasting=True) if n.decision.kind == "routing"
    ]
    assert noted.decision.action is LoopAction.SHARE_OUT and noted.decision.cohorts == (CHAT,)
    assert "shop 4.10, base 2.60" in noted.decision.why[0]


def test_little_evidence_shares_and_requests_decide(world: World) -> None:
    scored(world, CHAT, rounds=400, base=2.6, shop=3.0)
    later(world)
    halves = shares(world)[CHAT]
    assert set(halves) == {"base", "shop"} and 0.5 < halves["shop"] < 0.7
    world.al["shop/chat"] = 1.6  # the scores were wrong
    for _ in range(6):
        world.traffic(1500)
        later(world)
    assert shares(world) == {}, "base serves it anyway"


def test_its_own_drafter_may_lose_a_cohort_too(world: World) -> None:
    world.al = {"base/shop": 4.4, "shop/shop": 2.4}
    scored(world, SHOP, base=4.4, shop=2.4)
    later(world)
    assert shares(world) == {SHOP: {"base": 1.0}}
    (rule,) = world.serving.routes.cohorts
    assert rule.shares == {"base": 1.0}


def test_shares_that_hardly_differ_stay(world: World) -> None:
    scored(world, CHAT, rounds=400, base=2.6, shop=3.0)
    later(world)
    before = shares(world)
    scored(world, CHAT, rounds=400, base=2.6, shop=3.1)
    later(world)
    assert shares(world) == before


def test_a_cohort_under_change_is_left_alone_and_a_canary_for_all_looks_past_shared_ones(
    world: World,
) -> None:
    scored(world, CHAT, base=2.6, shop=4.1)
    later(world)
    world.push("new", parent="base")
    world.al["new"] = 3.4
    world.turn()
    world.turn()
    rules = [dict(rule.match) for rule in world.serving.routes.cohorts]
    assert rules[-1] == {} and {"shop", "chat"} == {rule.get("app") for rule in rules[:-1]}
    (change,) = world.loop.journal.active()
    world.turn()
    (change,) = world.loop.journal.active()
    steps = change.progress.canary.steps
    assert steps[-1].canary.of("errors")[0] == 0, "no request is nobody's but a shared cohort's"


def test_a_version_that_is_live_no_more_gets_nothing(world: World) -> None:
    scored(world, CHAT, base=2.6, shop=4.1)
    later(world)
    world.push("better", parent="shop")
    world.al["better"] = 4.0
    world.settle()
    assert world.store.live()[SHOP] == "better"
    assert all("shop" not in rule.shares for rule in world.serving.routes.cohorts)


def test_most_cohorts_are_bounded(tmp_path: Path) -> None:
    world = World(tmp_path, policy(most_cohorts=1))
    world.live("base")
    world.live("shop", cohort=SHOP)
    world.traffic(2)
    for cohort in (SHOP, CHAT):
        scored(world, cohort, base=2.0 if cohort == CHAT else 4.0, shop=3.0)
    later(world)
    assert len(shares(world)) == 1
    world.close()


def test_it_scores_one_cohort_in_a_turn_where_it_can(world: World) -> None:
    for cohort in (SHOP, CHAT):
        world.answers(cohort)
    world.scores = {"base": 2.4, "shop": 3.9}
    later(world)
    assert len({score.cohort for score in world.store.scores()}) == 1
    later(world)
    assert {score.cohort for score in world.store.scores()} == {SHOP, CHAT}
    assert CHAT in shares(world) and SHOP not in shares(world)


def test_it_is_off_unless_the_policy_says_so(world: World, tmp_path: Path) -> None:
    assert not AutospecPolicy().routing.enabled
    scored(world, CHAT, base=2.6, shop=4.1)
    later(world)
    assert world.loop.decided()[-1].action is LoopAction.SHARE_OUT
    world.policy = POLICY
    world.restart()
    world.turn()
    assert shares(world) == {} and len(world.serving.routes.cohorts) == 1


def test_deciding_alone_writes_nothing(world: World) -> None:
    world.turn()
    scored(world, CHAT, base=2.6, shop=4.1)
    assert LoopAction.SHARE_OUT in {decision.action for decision in world.loop.decided()}
    assert shares(world) == {}
