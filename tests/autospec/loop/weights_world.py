"""A world in which weights are trained by a job that is quick, for the tests of the loop."""

from __future__ import annotations

import json
import time
from pathlib import Path

import yaml

from paceline.autospec.drift import FallenCohort
from paceline.autospec.loop import ChangeStage, LoopDecision
from paceline.autospec.loop.journal import ChangeOrigin
from paceline.autospec.policy import AutospecPolicy
from tests.autospec.loop.worlds import POLICY, SHOP, World
from tests.drafters.corpora import an_answer, make_corpus

TRAINER = Path(__file__).with_name("trainer.py")
FALL = FallenCohort(SHOP, 0.5, 2.4, 3.0)
LONGEST = 60.0


def policy(folder: Path, **changed: object) -> AutospecPolicy:
    """Return the policy of these tests, with a quick job."""
    notes = str(folder / "notes")
    command = ["{python}", "-S", str(TRAINER), "{data}", "{out}", notes, "{init}"]
    template = folder / "job.yaml"
    template.write_text(yaml.safe_dump({"command": command, "best": ["{out}/drafter"]}))
    training = {"template": str(template), "least_answers": 50, **changed}
    return AutospecPolicy.read({**POLICY.model_dump(mode="json"), "training": training})


def made_world(folder: Path, *, looks_up: bool = False, **changed: object) -> World:
    """Return a world that a network serves, beside a corpus where it `looks_up`."""
    world = World(folder, policy(folder, **changed))
    network = folder / "network"
    network.mkdir()
    (network / "config.json").write_text("{}")
    spec = f"dflash:{network}"
    if looks_up:
        old = make_corpus(folder / "corpus", [an_answer([1, 2, 3])])
        spec = f"hybrid:{network},corpus={old}"
    world.live("base", spec=spec)
    return world


def given_up_corpus(world: World) -> None:
    """Have a corpus for a fall, auto-1, be over and given up."""
    journal, now = world.loop.journal, world.now
    journal.begin(SHOP, ChangeOrigin.DRIFT, "base", now, fallen=FALL)
    journal.update(journal.active()[0], now, ChangeStage.STOPPED, "it gained nothing")


def settle(world: World, longest: float = LONGEST) -> None:
    """Do turns until no change is under way and none begins, at the pace of the jobs."""
    end, idle = time.monotonic() + longest, 0
    while idle < 2:
        world.turn()
        active = world.loop.journal.active()
        idle = 0 if active else idle + 1
        if any(change.stage is ChangeStage.TRAINING for change in active):
            time.sleep(0.1)
        assert time.monotonic() < end, active


def decision(world: World) -> LoopDecision:
    (found,) = [d for d in world.loop.decided() if d.kind == "weights"]
    return found


def notes(world: World) -> list[dict[str, object]]:
    file = world.folder / "notes"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def left_over(world: World) -> list[Path]:
    """Return what is left of sets, of what jobs made of them, and of building corpora."""
    store = world.store.folder
    return [*(store / "training").iterdir(), *store.glob("jobs/*/out"), *store.glob("corpora/*")]
