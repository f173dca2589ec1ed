"""What the page is told of a store: all that people ask, within bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.autospec.api.answers import AutospecOverview
from paceline.autospec.api.cohorts import MOST_COHORTS
from paceline.autospec.api.overview import MOST_VERSIONS, overview
from paceline.autospec.api.traced import TracedTraffic
from paceline.autospec.loop import LoopAction, LoopDecision
from paceline.autospec.store import StoreLease, VersionState
from paceline.core.cohorts import Cohort
from tests.autospec.loop.worlds import CHAT, DAY, HOUR, ME, SHOP, TARGET, World, overtaken
from tests.server.conftest import check_body


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def told(world: World, by: Any = "hour") -> Any:
    """Return what the page is told, which has the form that it says."""
    traces = world.folder / "traces"
    traffic = shown = TracedTraffic().read_on(traces, world.now)
    if by == "minute":
        shown = TracedTraffic.by_minute().read_on(traces, world.now)
    seen: Any = overview(world.folder / "store", traffic, shown, by)
    body = {**seen, "traces": {"state": "read", "until": traffic.until, "message": None}}
    check_body(json.loads(json.dumps(body, allow_nan=False)), AutospecOverview)
    return seen


def cohort(seen: Any, label: str) -> Any:
    return next(shown for shown in seen["cohorts"] if shown["cohort"] == label)


def test_an_empty_store_has_all_requests_alone(world: World) -> None:
    seen = told(world)
    assert [shown["cohort"] for shown in seen["cohorts"]] == [""]
    assert (seen["versions"], seen["matrix"], seen["changes"], seen["loop"]) == ([], [], [], None)
    assert cohort(seen, "")["live"] is None and not cohort(seen, "")["has_rollback"]


def test_versions_tell_state_lineage_and_what_they_may_become(world: World) -> None:
    world.live("base")
    world.store.register("next", ME, spec="suffix", parent="base", note="by hand")
    world.store.register("later", ME, parent="next")
    world.store.retire("later", ME)
    seen = {version["name"]: version for version in told(world)["versions"]}
    assert list(seen) == ["next", "base", "later"], "the retired ones last"
    assert (seen["base"]["state"], seen["base"]["serves"]) == ("live", [""])
    assert seen["later"]["lineage"] == ["next", "base"] and seen["later"]["goals"] == []
    assert seen["next"]["goals"] == ["scored", "shadow", "canary", "live"]
    assert (seen["next"]["note"], seen["next"]["reason"]) == ("by hand", "because")


def test_a_cohort_has_its_own_version_or_that_of_all(world: World) -> None:
    world.live("base")
    world.live("shop-1", SHOP)
    world.live("base-2")
    world.history(days=1)
    seen = told(world)
    shop, chat, everyone = (cohort(seen, label) for label in (SHOP, CHAT, ""))
    assert (shop["live"], shop["is_own"]) == ("shop-1", True)
    assert (shop["has_rollback"], shop["back"]) == (True, None), "it gets that of all again"
    assert (chat["live"], chat["is_own"], chat["has_rollback"]) == ("base-2", False, False)
    assert (everyone["live"], everyone["back"]) == ("base-2", "base")
    assert shop["requests"] == chat["requests"] and everyone["share"] == 1.0
    assert everyone["requests"] == shop["requests"] + chat["requests"]


def test_a_cohort_that_fell_stands_beside_its_season(world: World) -> None:
    world.live("base")
    world.history(days=30, fall_days=5, shop=0.2)
    hours = told(world)
    shop, chat = cohort(hours, SHOP), cohort(hours, CHAT)
    assert shop["drift"]["change"] == pytest.approx(-0.2, abs=0.05)
    assert not shop["drift"]["by_loop"] and shop["drift"]["error"] > 0
    assert abs(chat["drift"]["change"]) < 0.05
    curve = shop["curve"]
    assert 160 <= len(curve["time"]) <= 168 and curve["time"] == sorted(curve["time"])
    for name in ("al", "low", "high", "expected", "requests"):
        assert len(curve[name]) == len(curve["time"])
    assert all(low <= al <= high for low, al, high in zip(
        curve["low"], curve["al"], curve["high"], strict=True) if low and high)  # fmt: skip
    daily = cohort(told(world, "day"), SHOP)["curve"]
    assert len(daily["time"]) in (30, 31) and sum(daily["requests"]) > sum(curve["requests"])
    assert daily["al"][2] == pytest.approx(3.0, abs=0.2)
    assert daily["al"][-2] == pytest.approx(2.4, abs=0.2)
    assert daily["expected"][-2] == pytest.approx(3.0, abs=0.1)
    assert cohort(hours, "")["curve"] is not None and cohort(hours, "")["drift"] is None


def test_by_the_minute_a_curve_shows_what_just_happened(world: World) -> None:
    world.live("base")
    world.history(days=20)
    ages = [60 * n + 5 for n in range(60)]
    world.write([world.request(SHOP, world.now - age, 2.0, "base") for age in ages])
    shown = told(world, "minute")
    curve = cohort(shown, SHOP)["curve"]
    assert shown["by"] == "minute" and 60 <= len(curve["time"]) <= 75
    assert curve["time"][-1] == pytest.approx(world.now, abs=70)
    assert curve["expected"][-1] == pytest.approx(3.0, abs=0.3)
    assert cohort(shown, SHOP)["requests"] > 500, "of the last week"


def test_a_live_version_that_was_overtaken_once_has_a_curve(world: World) -> None:
    world.live("base")
    overtaken(world)
    world.now += 10 * DAY
    world.write([world.request(SHOP, world.now - n * HOUR, 3.5, "good") for n in range(1, 30)])
    curve = cohort(told(world), SHOP)["curve"]
    assert curve is not None and sum(curve["requests"]) == 29


def test_a_short_reference_is_said_and_not_drawn(world: World) -> None:
    world.live("base", since_days=1)
    world.history(days=1)
    shop = cohort(told(world), SHOP)
    assert shop["drift"]["change"] is None and set(shop["curve"]["expected"]) == {None}
    assert shop["drift"]["reference_days"] < 3


def test_what_the_loop_saw_stands_before_what_the_curves_say(world: World) -> None:
    world.live("base")
    world.history(days=30, fall_days=5, shop=0.2)
    world.loop.tick()
    drift = cohort(told(world), SHOP)["drift"]
    assert drift["by_loop"] and drift["change"] == pytest.approx(-0.2, abs=0.05)


def test_a_cohort_that_is_shared_out_says_among_whom(world: World) -> None:
    world.live("base")
    world.live("shop-1", SHOP)
    with world.store.database.transaction() as connection:
        values = (
            CHAT,
            '{"base": 0.25, "shop-1": 0.75}',
            "scores",
            "shop-1 scored more.",
            world.now,
        )
        connection.execute(
            "INSERT INTO routings(cohort, shares, source, why, time) VALUES (?, ?, ?, ?, ?)", values
        )
    chat = cohort(told(world), CHAT)
    assert chat["shares"] == {"base": 0.25, "shop-1": 0.75}
    assert chat["shared_because"] == "shop-1 scored more."


def test_the_matrix_has_scores_beside_what_was_seen(world: World) -> None:
    world.live("base")
    world.store.register("next", ME, spec="suffix")
    world.store.add_score("next", SHOP, 3.5, 3.4, 3.6, 500, "held out")
    at = world.now - 600
    took = {"seconds": 1.0, "ar_seconds": 2.5}
    world.write([world.request(SHOP, at + n, 3.0, "base", **took) for n in range(9)])
    cells = {(cell["version"], cell["cohort"]): cell for cell in told(world)["matrix"]}
    assert cells.keys() == {("next", SHOP), ("base", SHOP), ("base", "")}
    assert cells["next", SHOP]["scored"]["al"] == 3.5 and cells["next", SHOP]["seen"] is None
    seen = cells["base", SHOP]["seen"]
    assert seen["requests"] == 9 and seen["speedup"] == 2.5
    assert seen["low"] < seen["al"] < seen["high"]


def test_a_change_under_way_tells_its_canary_and_what_it_lacks(world: World) -> None:
    world.live("base")
    world.push("pushed")
    world.al["pushed"] = 3.6
    world.turn()
    world.turn()
    (change,) = told(world)["changes"]
    assert (change["percent"], change["new"]["tokens_per_round"]) == (20.0, None)
    world.turn()
    (active,) = world.loop.journal.active()
    world.loop.journal.update(active, world.now, active.stage, hold=["Too early."])
    seen = told(world)
    (change,) = seen["changes"]
    assert (change["version"], change["replaces"]) == ("pushed", "base")
    assert (change["stage"], change["origin"]) == ("canary", "pushed")
    assert change["hold"] == ["Too early."] and change["new"]["requests"] > 0
    assert change["new"]["tokens_per_round"] > change["old"]["tokens_per_round"]
    marks = cohort(seen, "")["marks"]
    assert [mark["kind"] for mark in marks if mark["version"] == "pushed"] == ["tried"]
    curve = cohort(seen, SHOP)["curve"]
    world.settle()
    after = told(world)
    assert after["changes"][0]["stage"] in ("live", "stopped")
    ended = next(m for m in cohort(after, "")["marks"] if m["kind"] != "tried")
    assert ended["version"] == "pushed"
    assert sum(cohort(after, SHOP)["curve"]["requests"]) > sum(curve["requests"])


def test_decisions_say_why_not_and_what_they_cost(world: World) -> None:
    decision = LoopDecision(
        "within", LoopAction.WAIT, (SHOP,), world.now, 12.5, 1.0, ("AL fell.",), ("Too early.",)
    )
    mix = LoopDecision("mix", LoopAction.PROPOSE_ROUTES, (CHAT,), world.now, why_not=("No.",))
    world.loop.journal.note([decision, mix], world.now)
    world.loop.journal.note([mix], world.now + 1)
    lasting, ended = told(world)["decisions"]
    assert lasting["kind"] == "mix" and lasting["ended"] is None
    assert (ended["gain"], ended["cost"], ended["why_not"]) == (12.5, 1.0, ["Too early."])


def test_many_cohorts_and_versions_are_cut_and_counted(world: World) -> None:
    world.live("base")
    at = world.now - 60
    many = [Cohort("tiny", f"app-{number}").label for number in range(30)]
    world.write(
        [world.request(c, at, 3.0, "base") for n, c in enumerate(many) for _ in range(n + 1)]
    )
    for number in range(MOST_VERSIONS + 5):
        world.store.register(f"v{number}", ME)
    seen = told(world)
    shown = [entry["cohort"] for entry in seen["cohorts"]]
    assert shown == ["", *reversed(many[30 - MOST_COHORTS :])], "the largest"
    assert seen["left_out"]["cohorts"] == 30 - MOST_COHORTS
    assert len(seen["versions"]) == MOST_VERSIONS and seen["left_out"]["versions"] == 6


def test_it_names_who_decides_and_no_path_token_or_text(world: World) -> None:
    world.store.register("base", ME, spec="suffix", target=TARGET)
    world.store.promote("base", ME, VersionState.LIVE)
    world.answers(count=3)
    with StoreLease(world.store, "paceline autospec"):
        seen = told(world)
    assert seen["loop"]["purpose"] == "paceline autospec"
    text = json.dumps(seen)
    assert str(world.folder) not in text and "ids" not in text
