"""Loads that take minutes: the loop goes on meanwhile, and learns how they ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.autospec.background_loads import BackgroundLoads
from paceline.autospec.serving import DrafterRefused
from tests.autospec.loop.worlds import SHOP, FakeServing, World


class SlowServing(FakeServing):
    """Loads one of its drafters only when `may_load` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.may_load = "", threading.Event()

    def load(self, name: str, spec: str) -> None:
        if name == self.slow:
            assert self.may_load.wait(30)
        super().load(name, spec)


@pytest.fixture
def serving() -> SlowServing:
    return SlowServing()


@pytest.fixture
def world(tmp_path: Path, serving: SlowServing) -> Iterator[World]:
    made = World(tmp_path)
    made.serving = BackgroundLoads(serving, patience=0.05)
    made.serving.share = serving.share
    made.loop = made._new_loop()
    made.live("base")
    yield made
    made.close()


def stages(world: World) -> dict[str, str]:
    return {change.version: str(change.stage) for change in world.loop.journal.changes()}


def test_a_bad_drafter_is_stopped_while_another_loads(world: World, serving: SlowServing) -> None:
    world.live("shop-1", SHOP)
    world.push("slow", parent="shop-1")
    serving.slow = "slow"
    world.turn()
    assert stages(world) == {"slow": "loading"}
    world.push("bad")
    world.al = {"bad": 1.5, "slow": 3.5}
    for _ in range(40):
        world.turn()
        if stages(world)["bad"] == "stopped":
            break
    assert stages(world) == {"slow": "loading", "bad": "stopped"}
    assert "slow" not in serving.drafters
    assert world.serving.loaded()["slow"].state == "loading"
    serving.may_load.set()
    world.settle()
    assert world.store.live() == {"": "base", SHOP: "slow"}
    assert serving.loads["slow"] == 1


def test_what_went_wrong_in_the_background_ends_the_change(
    world: World, serving: SlowServing
) -> None:
    serving.slow, serving.refuses = "ill", {"ill"}
    world.push("ill")
    world.turn()
    assert stages(world) == {"ill": "loading"}
    serving.may_load.set()
    world.settle()
    (change,) = world.loop.journal.changes()
    assert change.stage == "stopped" and "cannot be loaded: ill: no room" in change.reason


def test_one_that_has_left_is_loaded_anew(serving: SlowServing) -> None:
    background, serving.slow = BackgroundLoads(serving, patience=0.0), "slow"
    background.load("slow", "suffix")
    serving.may_load.set()
    while not background.loaded()["slow"].is_ready:
        time.sleep(0.01)
    background.unload("slow")
    background.load("slow", "suffix")
    while "slow" not in serving.drafters:
        time.sleep(0.01)
    assert serving.loads["slow"] == 2


def test_a_load_that_ends_soon_is_waited_for() -> None:
    serving = FakeServing()
    background = BackgroundLoads(serving)
    background.load("quick", "suffix")
    assert background.loaded()["quick"].is_ready
    serving.refuses = {"ill"}
    with pytest.raises(DrafterRefused, match="no room"):
        background.load("ill", "suffix")
    assert set(background.loaded()) == {"quick"}
