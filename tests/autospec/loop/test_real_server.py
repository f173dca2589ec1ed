"""The loop with a real server: an app's traffic is drafted for better, and no kill changes that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.autospec.loop import ChangeRecord, ChangeStage, LoopJournal
from paceline.autospec.store import DrafterStore, VersionState
from paceline.dataset.traces.reader import read_requests
from tests.autospec.loop.real_world import COHORT, ME, PROMPTS, RealWorld
from tests.autospec.store.stores import faults
from tests.engine.tiny import save_tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]
LONGEST = 800.0  # seconds


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RealWorld]:
    model = tmp_path / "model"
    model.mkdir()
    save_tiny(model)
    made = RealWorld(tmp_path, model)
    yield made
    made.close()


def changes(world: RealWorld) -> list[ChangeRecord]:
    with DrafterStore(world.folder / "store") as store:
        return LoopJournal(store).changes()


def stage(world: RealWorld) -> ChangeStage | None:
    found = changes(world)
    return found[0].stage if found else None


def until(world: RealWorld, stages: set[ChangeStage], killing: bool = False) -> list[ChangeStage]:
    """Do turns until the latest change is in one of the stages; return those that it was in. With
    `killing`, a turn is killed at its first point, the next one at its second, and so on; at each
    new stage the server is killed, and it begins anew."""
    end, seen, point = time.monotonic() + LONGEST, list[ChangeStage](), 0
    while (now := stage(world)) is None or now not in stages:
        if now is not None and now not in seen:
            seen.append(now)
            point = 0
            if killing:
                world.restart_server()
        assert time.monotonic() < end, f"still {now}: {changes(world)}"
        was_killed = world.turn(point if killing else None)
        assert faults(world.folder / "store") == [], f"{now}, killed at point {point}"
        point = point + 1 if was_killed else 0
        if not was_killed:
            time.sleep(0.2)
    if killing:
        world.restart_server()
    return [*seen, now]


def check_texts(world: RealWorld) -> None:
    assert world.sent > 100 and world.failures == []
    assert [len(texts) for texts in world.texts] == [1] * len(PROMPTS), "a text has changed"


def check_end(world: RealWorld) -> None:
    with DrafterStore(world.folder / "store") as store:
        assert store.live() == {"": "base", COHORT: "auto-1"}
        steps = [str(step.after) for step in store.history("auto-1")]
        assert steps == ["registered", "trained", "shadow", "canary", "live"]
        assert [version.name for version in store.versions()] == ["auto-1", "base"]
    assert [change.version for change in changes(world)] == ["auto-1"]
    served = world.routes()
    assert served["drafters"] == ["auto-1", "base", "first"] and served["default"] == "base"
    assert served["shares"] == [{"auto-1": 1.0}]
    assert faults(world.folder / "store") == []


def tokens_per_round(world: RealWorld, drafter: str) -> float:
    rows = [row for row in read_requests(world.folder / "traces")
            if row.drafter == drafter and not row.id.startswith("old-")]  # fmt: skip
    return 1 + sum(row.accepted for row in rows) / sum(row.rounds for row in rows)


def test_traffic_that_changed_gets_a_corpus_and_a_bad_drafter_is_stopped(world: RealWorld) -> None:
    with world.traffic():
        seen = until(world, {ChangeStage.LIVE, ChangeStage.STOPPED})
        assert seen[-1] is ChangeStage.LIVE, changes(world)[0].reason
        check_end(world)
        with DrafterStore(world.folder / "store") as store:
            store.register("bad", ME, spec="ngram", parent="auto-1")
            store.promote("bad", ME, VersionState.CANARY)
        until(world, {ChangeStage.CANARY})
        until(world, {ChangeStage.LIVE, ChangeStage.STOPPED})
        pushed = changes(world)[0]
    assert (pushed.version, pushed.stage) == ("bad", ChangeStage.STOPPED), pushed.reason
    assert "Tokens per round" in pushed.reason
    world.turn()
    assert world.routes()["shares"] == [{"auto-1": 1.0}]
    assert tokens_per_round(world, "auto-1") > 3 > tokens_per_round(world, "base")
    check_texts(world)


def test_kills_of_server_and_loop_lose_nothing_and_do_nothing_twice(world: RealWorld) -> None:
    with world.traffic():
        seen = until(world, {ChangeStage.LIVE, ChangeStage.STOPPED}, killing=True)
        world.turn()
    stages = ["building", "scoring", "loading", "canary", "live"]
    assert [*map(str, seen)] == stages, changes(world)[0].reason
    assert world.starts == 1 + len(stages) and world.kills > 20
    check_end(world)
    check_texts(world)
