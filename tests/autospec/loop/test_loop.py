"""The loop: what it does of itself, what it leaves alone, and that a kill changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.autospec.loop import LoopAction, rollback
from paceline.autospec.loop.observe import CanaryArms, TraceFolder
from paceline.autospec.sums import N, ratio_of
from tests.autospec.loop.worlds import (
    CHAT,
    DAY,
    HOUR,
    ME,
    SHOP,
    Killed,
    Killer,
    Likeness,
    World,
    drifted,
    overtaken,
    with_days_of,
)
from tests.autospec.store.stores import snapshot


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def actions(world: World) -> dict[LoopAction, tuple[str, ...]]:
    return {d.action: d.cohorts for d in world.loop.decided()}


def test_a_cohort_that_drifts_gets_a_corpus_by_way_of_a_canary(world: World) -> None:
    drifted(world)
    world.settle()
    end = world.end()
    assert end["live"] == {"": "base", SHOP: "auto-1"}
    assert end["loaded"] == ["auto-1", "base"] and end["default"] == "base"
    shop = {"model": "tiny", "app": "shop", "language": "de", "region": "eu"}
    assert end["rules"] == [(shop, {"auto-1": 1.0})]
    steps = [str(step.after) for step in world.store.history("auto-1")]
    assert steps == ["registered", "trained", "shadow", "canary", "live"]
    assert world.loop.journal.changes()[0].progress.canary.ended == "pass"
    world.turn()
    assert not world.loop.journal.active(), "it is not trained anew within the cool-down"


def test_a_corpus_that_gains_too_little_is_not_tried(world: World) -> None:
    drifted(world)
    world.scores["auto-1"] = 2.41
    world.settle()
    (change,) = world.loop.journal.changes()
    assert change.stage == "stopped" and "2.0% are needed" in change.reason
    assert world.end()["loaded"] == ["base"]
    weights, corpus = sorted(
        (d for d in world.loop.decided() if d.cohorts == (SHOP,)), key=lambda d: d.kind
    )
    assert corpus.action is LoopAction.WAIT and "after 24 hours" in corpus.why_not[0]
    assert weights.action is LoopAction.WAIT and "paceline train" in weights.why_not[0]
    assert not world.store.version("auto-1").artefacts, "the answers in it are gone"


def test_without_answers_to_learn_from_it_says_so(world: World) -> None:
    world.live("base")
    world.history(shop=0.2)
    world.settle()
    (change,) = world.loop.journal.changes()
    assert change.stage == "stopped" and "--traces-tokens" in change.reason


def test_a_bad_drafter_that_was_pushed_is_stopped_and_retired(world: World) -> None:
    world.live("base")
    world.push("bad")
    world.al = {"bad": 1.5}
    world.settle()
    end = world.end()
    assert end["states"] == {"base": "live", "bad": "retired"}
    assert end["loaded"] == ["base"] and end["rules"] == []
    assert "Tokens per round" in world.store.history("bad")[-1].reason


def test_a_good_drafter_that_was_pushed_goes_live_and_the_old_one_stays_loaded(
    world: World,
) -> None:
    world.live("base")
    world.push("good")
    world.al = {"good": 3.5}
    world.settle()
    assert world.store.live() == {"": "good"} and world.serving.routes.default == "good"
    assert sorted(world.serving.drafters) == ["base", "good"]
    before = world.serving.loads.copy()
    rollback(world.store, world.serving, ME)
    assert world.serving.routes.default == "base" and world.serving.loads == before
    world.turn()
    assert world.store.live() == {"": "base"} and not world.loop.journal.active()


def test_a_pushed_drafter_that_was_overtaken_once_is_watched_when_it_is_live(world: World) -> None:
    world.live("base")
    overtaken(world)
    world.now += 3 * DAY
    world.write([world.request(SHOP, world.now - n * HOUR, 3.5, "good") for n in range(1, 30)])
    world.loop.tick()
    (shop,) = [seen for seen in world.loop.journal.seen() if seen.cohort == SHOP]
    assert shop.al == pytest.approx(3.5, abs=0.5)


def test_a_corpus_that_was_overtaken_once_lasts_for_a_rollback(world: World) -> None:
    drifted(world)
    world.settle()
    corpus = world.store.folders(world.store.version("auto-1"))["corpus"]
    overtaken(world, f"suffix,corpus={corpus}")
    world.live("third", since_days=0.0)
    world.turn()
    assert world.store.version("good").state == "retired"
    assert world.store.version("good").artefacts, "a rollback needs the answers in it"


def test_a_drafter_that_cannot_be_loaded_harms_nobody(world: World) -> None:
    world.live("base")
    world.push("huge")
    world.serving.refuses = {"huge"}
    world.settle()
    assert world.end()["states"]["huge"] == "retired"
    assert "no room" in world.store.history("huge")[-1].reason
    assert world.serving.routes.default == "base"


def test_a_canary_counts_answers_that_came_at_once(world: World) -> None:
    """Behind Envoy, nobody sees when the first token of such an answer was there."""
    streamed = world.request(SHOP, at=world.now - 2, al=3.0, drafter="base")
    at_once = replace(world.request(SHOP, at=world.now - 1, al=3.0, drafter="new"), ttft=None)
    world.write([streamed, at_once])
    arms = CanaryArms(SHOP, "new", "base")
    found = TraceFolder(world.folder / "traces").arms(arms, world.now - 10, world.now + 10)
    for request, chosen, first in ((streamed, ~found.is_canary, 1), (at_once, found.is_canary, 0)):
        sums = found.sums(chosen)
        assert sums["ttft"][N] == first
        assert request.total is not None
        seconds = request.total - (request.ttft or 0.0)
        assert ratio_of(sums["tpot"]) == pytest.approx(seconds / (request.output_tokens - first))


def test_a_cohort_that_grows_gets_a_corpus_of_its_own(world: World) -> None:
    world.live("base")
    world.history(only=CHAT)
    world.history(days=1.0, only=SHOP, fall_days=1.0, shop=0.5)
    world.answers()
    world.al = {"base/shop": 1.5, "auto-1": 3.2}
    world.scores = {"base": 1.5, "auto-1": 3.2}
    world.settle()
    assert world.end()["live"] == {"": "base", SHOP: "auto-1"}
    (change,) = world.loop.journal.changes()
    assert change.origin == "growth" and change.cohort == SHOP
    begun = [n.decision for n in world.loop.journal.decisions() if n.decision.kind == "mix"]
    assert any("has grown to 20% of the rounds" in d.why[0] for d in begun)
    assert all(d.action is not LoopAction.BUILD_CORPUS for d in world.loop.decided())


def test_a_corpus_for_a_cohort_that_grew_must_gain_what_a_regional_drafter_must(
    world: World,
) -> None:
    world.live("base")
    world.history(only=CHAT)
    world.history(days=1.0, only=SHOP, fall_days=1.0, shop=0.5)
    world.answers()
    world.al = {"base/shop": 1.5}
    world.scores = {"base": 1.5, "auto-1": 1.6}
    world.settle()
    (change,) = world.loop.journal.changes()
    assert change.stage == "stopped" and "8.0% are needed" in change.reason


def test_short_days_lead_to_the_same_decisions_sooner(tmp_path: Path) -> None:
    """Weeks of traffic in an hour: what drift says is the same, and its times are the clock's."""
    found = {}
    for name, seconds in (("plain", DAY), ("short", 90.0)):
        (tmp_path / name).mkdir()
        world = World(tmp_path / name, with_days_of(seconds))
        world.rng = np.random.default_rng(20)
        world.now = world.now // DAY * DAY + HOUR  # the same hours of the day and the week
        world.live("base", since_days=60 * seconds / DAY)
        world.history(shop=0.2, day_seconds=seconds)
        (decision,) = [d for d in world.loop.decided() if SHOP in d.cohorts]
        found[name] = decision
        age = (world.now - decision.start) / seconds
        assert 2.5 < age < 4.5, "the last three days of the policy"
        world.close()
    assert found["short"].action is found["plain"].action is LoopAction.BUILD_CORPUS
    assert found["short"].gain == pytest.approx(found["plain"].gain, rel=0.2)


def test_a_step_in_all_cohorts_is_an_alert_and_no_change(world: World) -> None:
    world.live("base")
    world.history(shop=0.2, chat=0.2, fall_days=2.0)
    world.answers()
    world.al = {"base": 2.4}
    world.turn()
    assert actions(world).keys() == {LoopAction.OFFER_ROLLBACK}
    assert world.loop.journal.changes() == []
    (noted,) = world.loop.journal.decisions(lasting=True)
    assert noted.decision.kind == "deployment" and noted.decision.why_not


def test_a_fall_late_in_answers_is_an_alert_that_names_the_place(world: World) -> None:
    world.live("base")
    world.long_answers(late=0.6)
    world.loop.tick()
    (noted,) = world.loop.journal.decisions(lasting=True)
    found = noted.decision
    assert (found.kind, found.action) == ("decay", LoopAction.ALERT)
    assert found.why[0].startswith(f"From token 512 of the answer on, AL of {SHOP} fell by ")
    assert "No retrain on the same texts" in found.why_not[0]
    world.restart()
    assert [d.kind for d in world.loop.decided()] == ["decay"], "read anew, it is the same"


def test_steady_traffic_leads_to_nothing_and_why_not(world: World) -> None:
    world.live("base")
    world.history()
    world.turn()
    (decision,) = world.loop.decided()
    assert decision.action is LoopAction.NOTHING and "No retrain" in decision.why_not[0]
    assert world.loop.journal.changes() == []


def test_deciding_alone_changes_nothing(world: World) -> None:
    drifted(world)
    before = snapshot(world.store.folder)
    assert LoopAction.BUILD_CORPUS in actions(world)
    assert snapshot(world.store.folder) == before
    assert world.serving.changes == [] and world.loop.journal.decisions() == []


@pytest.mark.parametrize(
    "scenario",
    [*(pytest.param(each, marks=pytest.mark.slow) for each in ("drift", "pushed")), "bad"],
)
@pytest.mark.timeout(1200)
def test_a_kill_at_every_point_changes_nothing(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    like = Likeness()

    def run(folder: Path, at: int | None) -> tuple[World, int, bool]:
        folder.mkdir()
        world, killer = World(folder, like=like), Killer(at)
        if scenario == "drift":
            drifted(world)
        else:
            world.live("base")
            world.push("new")
            world.al = {"new": 3.5 if scenario == "pushed" else 1.5}
        world.serving.killer, was_killed = killer, False
        with killer.watching(monkeypatch):
            try:
                world.settle()
            except Killed:
                was_killed = True
                world.restart()
                world.settle()
        return world, killer.seen, was_killed

    clean, points, _ = run(tmp_path / "clean", None)
    expected = clean.end()
    clean.close()
    assert points > 20
    for at in range(points):
        world, _, was_killed = run(tmp_path / str(at), at)
        assert was_killed, like
        assert world.end() == expected, f"killed at {at} of {points}, {like}"
        assert max(world.serving.loads.values()) == 1, f"loaded twice after a kill at {at}"
        world.close()
