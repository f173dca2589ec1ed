"""Servers that have no room for another drafter, and drafters whose process has ended."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.autospec.loop import rollback
from paceline.autospec.loop.journal import ChangeOrigin, ChangeStage
from paceline.autospec.serving import ServedVersion, ServingFull
from paceline.autospec.store import VersionState
from paceline.core import InvalidRequest
from tests.autospec.loop.worlds import ME, SHOP, TARGET, FakeServing, World


class SmallServing(FakeServing):
    """Has room for two drafters; one that leaves takes its room until it is asked again."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving: set[str] = set()

    def loaded(self) -> dict[str, ServedVersion]:
        there = dict(super().loaded())
        gone = {name: ServedVersion(name, "suffix", "retiring", 1) for name in self.leaving}
        self.leaving.clear()
        return {**there, **gone}

    def load(self, name: str, spec: str) -> None:
        if len(self.drafters.keys() - {name}) + len(self.leaving) >= 2:
            raise ServingFull(f"no room for {name}")
        self.drafters.pop(name, None)  # one that has failed
        super().load(name, spec)

    def unload(self, name: str) -> None:
        super().unload(name)
        self.leaving.add(name)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.serving = SmallServing()
    made.loop = made._new_loop()
    made.live("base")
    made.al = {"good": 3.5, "bad": 1.5}
    yield made
    made.close()


def test_the_one_to_go_back_to_leaves_when_a_new_one_needs_its_room(world: World) -> None:
    world.push("good")
    world.settle()
    assert world.end()["loaded"] == ["base", "good"]
    world.push("bad", parent="good")
    world.settle()
    assert world.serving.changes.index("unload base") < world.serving.changes.index("load bad")
    assert world.end()["states"] == {"base": "retired", "good": "live", "bad": "retired"}
    assert world.end()["loaded"] == ["good"]
    rollback(world.store, world.serving, ME)
    assert world.serving.routes.default == "base" and world.end()["loaded"] == ["base"]


def test_where_nothing_may_leave_the_new_one_is_refused(world: World) -> None:
    world.serving.drafters["foreign"] = ServedVersion("foreign", "ngram", "live", 0)
    world.push("good")
    world.settle()
    assert world.end()["states"]["good"] == "retired"
    assert "no room for good" in world.store.history("good")[-1].reason
    assert world.end()["loaded"] == ["base", "foreign"]


def test_one_waits_for_room_while_another_that_is_tried_holds_it(world: World) -> None:
    world.push("bad")
    world.turn()
    assert world.serving.drafters.keys() == {"base", "bad"}
    world.store.register("good", ME, spec="suffix", parent="base", target=TARGET)
    journal = world.loop.journal
    journal.begin(SHOP, ChangeOrigin.PUSHED, "base", world.now, version="good")
    world.store.promote("good", ME, VersionState.CANARY)
    world.turn()
    waiting = journal.active()[-1]
    assert (
        waiting.stage is ChangeStage.LOADING and "no room for good" in waiting.as_json()["hold"][0]
    )
    world.settle()
    assert world.end()["states"] == {"base": "live", "bad": "retired", "good": "live"}
    assert journal.changes()[0].as_json()["hold"] == []


def test_one_whose_process_has_ended_is_loaded_again(world: World) -> None:
    world.turn()
    serving = world.serving
    serving.drafters["base"] = replace(serving.drafters["base"], state="failed")
    world.turn()
    assert serving.drafters["base"].is_ready and serving.loads["base"] == 2


def test_a_server_that_had_no_request_yet_gets_what_is_live(world: World) -> None:
    traces = world.folder / "traces"
    shutil.rmtree(traces)
    with pytest.raises(InvalidRequest, match="traces: got"):  # it is not there at all
        world.loop.tick()
    traces.mkdir()
    (traces / ".lock").touch()
    world.loop.tick()
    assert world.serving.routes.default == "base"
    (traces / "notes.txt").touch()
    world.now += 3600
    with pytest.raises(InvalidRequest, match="traces: got"):
        world.loop.tick()
