"""Weights: trained once a corpus is over, by a job that may be killed, and tried like a corpus."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.autospec.jobs.template import TEMPLATES
from paceline.autospec.loop import ChangeStage, LoopAction
from paceline.autospec.loop import change as changing
from paceline.autospec.loop.corpora import made_corpus
from paceline.autospec.loop.journal import ChangeOrigin
from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.store import TargetIdentity
from paceline.core import InvalidRequest
from paceline.dataset.traces.records import SHARED
from paceline.dataset.training_set import read_rows
from paceline.drafters.corpus_folder import read_corpus_manifest
from paceline.models.dflash.checkpoint import load_checkpoint
from paceline.models.loader import identity, load_model
from tests.autospec.jobs.running import end_all
from tests.autospec.loop.weights_world import (
    LONGEST,
    decision,
    files,
    given_up_corpus,
    left_over,
    made_world,
    notes,
    policy,
    settle,
)
from tests.autospec.loop.worlds import DAY, HOUR, POLICY, SHOP, Killed, Killer, World
from tests.engine.tiny import save_tiny
from tests.training.conftest import PROMPTS, write_set
from tests.training.runs import config, drafter_of


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = made_world(tmp_path)
    yield made
    end_all(made.store.folder)
    made.close()


def test_weights_follow_a_corpus_and_get_a_fresh_one(world: World) -> None:
    world.history(shop=0.2)
    world.answers()
    world.al = {"base/shop": 2.4, "auto-1": 2.6, "auto-2": 3.1}
    world.scores = {"base": 2.4, "auto-1": 2.6, "auto-2": 3.1}
    settle(world)
    assert world.store.live() == {"": "base", SHOP: "auto-2"}
    version = world.store.version("auto-2")
    assert version.spec == "hybrid:{network},corpus={corpus}" and version.parent == "auto-1"
    first, fresh = (
        read_corpus_manifest(world.store.folders(world.store.version(name))["corpus"], "corpus")
        for name in ("auto-1", "auto-2")
    )
    assert fresh.newest > first.newest and fresh.created > first.created
    (learnt,) = [note["rows"]["train"] for note in notes(world)]
    assert fresh.answers == learnt, "it has the answers that the weights learn from, and no more"
    assert not list(world.store.folder.glob("corpora/*")), "nothing is left of building it"
    assert (world.store.folders(version)["network"] / "config.json").read_text() != "{}"
    steps = [str(step.after) for step in world.store.history("auto-2")]
    assert steps == ["registered", "trained", "shadow", "canary", "live"]
    (note,) = notes(world)
    assert note["rows"] == {"train": 108, "held_out": 12} and note["user_data"] is True
    assert str(world.store.folder) in str(note["init"]), "it goes on from the live network"


def test_where_no_fresh_corpus_can_be_built_the_live_one_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made_once(root: Path, *rest: Any) -> Path:
        roots.append(root)
        if len({*roots}) > 1:
            raise InvalidRequest("answers", 3, "at least 50")
        return made_corpus(root, *rest)

    roots: list[Path] = []
    monkeypatch.setattr(changing, "made_corpus", made_once)
    world.history(shop=0.2)
    world.answers()
    world.al = {"base/shop": 2.4, "auto-1": 2.6, "auto-2": 3.1}
    world.scores = {"base": 2.4, "auto-1": 2.6, "auto-2": 3.1}
    settle(world)
    corpora = [world.store.version(name).artefacts["corpus"] for name in ("auto-1", "auto-2")]
    assert world.store.live()[SHOP] == "auto-2" and corpora[0] == corpora[1]
    assert len({*roots}) == 2, "it was not tried"


def test_where_an_engine_looks_nothing_up_weights_are_first(world: World) -> None:
    world.serving.corpora = False
    world.history(shop=0.2)
    world.answers()
    world.al = {"base/shop": 2.4, "auto-1": 3.1}
    world.scores = {"base": 2.4, "auto-1": 3.1}
    (found, *_) = world.loop.decided()
    assert found.action is LoopAction.TRAIN and "does not look answers up" in found.why[0]
    settle(world)
    assert world.store.live() == {"": "base", SHOP: "auto-1"}
    assert {change.origin for change in world.loop.journal.changes()} == {ChangeOrigin.WEIGHTS}
    assert world.store.version("auto-1").artefacts.keys() == {"network"}


def test_where_an_engine_looks_nothing_up_a_fall_is_trained_for_once(world: World) -> None:
    world.serving.corpora = False
    world.history(shop=0.2)
    world.answers()
    world.al = {"base/shop": 2.4}
    world.scores = {"base": 2.4, "auto-1": 2.4}
    settle(world)
    (tried,) = world.loop.journal.changes()
    assert tried.stage is ChangeStage.STOPPED and "a gain of 0.0%" in tried.reason
    assert not any(found.action.begins_change for found in world.loop.decided())


def test_a_training_that_could_not_begin_is_tried_again_when_there_are_answers(
    world: World,
) -> None:
    world.serving.corpora = False
    world.history(shop=0.2)
    try_twice(world, "auto-2")


def test_a_training_behind_a_corpus_that_could_not_begin_is_tried_again_too(world: World) -> None:
    given_up_corpus(world)
    try_twice(world, "auto-3")


def try_twice(world: World, live: str) -> None:
    """Have a training not begin, since all answers are alike, and begin later: `live` is its
    version then."""
    same = {"scope": SHARED, "prompt_ids": [1, 2, 3], "output_ids": [4, 5, 6]}
    until = world.now + 14 * DAY
    world.write([world.request(SHOP, world.now - HOUR, 2.4, "base", expires=until, **same)
                 for _ in range(120)])  # fmt: skip
    world.al = {"base/shop": 2.4, live: 3.1}
    world.scores = {"base": 2.4, live: 3.1}
    settle(world)
    stopped = world.loop.journal.changes()[0]
    assert stopped.stage is ChangeStage.STOPPED and "alike 119" in stopped.reason
    count = len(world.loop.journal.changes())
    world.answers()
    settle(world)
    assert len(world.loop.journal.changes()) == count, "not before retry_hours"
    for _ in range(25):
        world.now += HOUR
        world.traffic(20)
    settle(world)
    assert world.store.live()[SHOP] == live


def test_what_users_were_told_is_gone_when_the_job_is_over(world: World) -> None:
    world.answers()
    given_up_corpus(world)
    world.al = {"base/shop": 2.4, "auto-2": 3.1}
    world.scores = {"base": 2.4, "auto-2": 3.1}
    settle(world)
    assert world.store.live()[SHOP] == "auto-2"
    assert left_over(world) == []


def won_all_back(world: World) -> None:
    """Let the corpus of a fall win back all; weights would bring more."""
    world.history(shop=0.2)
    world.answers()
    world.al = {"base/shop": 2.4, "auto-1": 3.3, "auto-2": 3.8}
    world.scores = {"base": 2.4, "auto-1": 3.3, "auto-2": 3.8}
    settle(world)


def test_a_corpus_that_won_all_back_leaves_nothing_to_train_for(world: World) -> None:
    won_all_back(world)
    found = decision(world)
    assert found.action is LoopAction.NOTHING and found.gain == 0.0
    assert "Training would save 0.00" in found.why_not[0]
    assert notes(world) == []


def test_weights_may_aim_at_more_than_was_lost(tmp_path: Path) -> None:
    world = made_world(tmp_path, aim=1.3)
    won_all_back(world)
    assert world.store.live()[SHOP] == "auto-2"
    end_all(world.store.folder)
    world.close()


def test_what_counts_is_acceptance_since_the_corpus_is_live_not_what_its_canary_promised(
    world: World,
) -> None:
    won_all_back(world)
    assert decision(world).action is LoopAction.NOTHING
    world.al["auto-1"] = world.scores["auto-1"] = 2.6
    for _ in range(26):
        world.now += HOUR
        world.traffic(20)
    settle(world)
    assert world.store.live()[SHOP] == "auto-2"
    (weights,) = [c for c in world.loop.journal.changes() if c.origin is ChangeOrigin.WEIGHTS]
    assert weights.stage is ChangeStage.LIVE


def test_without_consent_it_says_so_and_trains_nothing(world: World) -> None:
    given_up_corpus(world)
    found = decision(world)
    assert found.action is LoopAction.WAIT
    assert "Not trained: no consented answers (0 of 50)" in found.why_not[0]
    world.turn()
    assert world.loop.journal.active() == []
    world.answers()
    assert decision(world).action is LoopAction.TRAIN


def test_without_consent_it_learns_from_a_synthetic_set(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    target = save_tiny(tmp_path / "tiny", blur=0.0, num_layers=5)
    made = write_set(tmp_path / "set", target, PROMPTS)
    world = made_world(tmp_path, synthetic={"shop": str(made)})
    before = files(made)
    given_up_corpus(world)
    found = decision(world)
    assert found.action is LoopAction.TRAIN
    assert f"synthetic set {made}: no consented answers (0 of 50)" in found.why[-1]
    world.al = {"base/shop": 2.4, "auto-2": 3.1}
    world.scores = {"base": 2.4, "auto-2": 3.1}
    settle(world)
    assert world.store.live()[SHOP] == "auto-2"
    (note,) = notes(world)
    assert note["data"] == str(made) and note["user_data"] is False
    (score,) = [score for score in world.store.scores() if score.name == "auto-2"]
    assert score.source == "synthetic answers held out, all rounds"
    assert files(made) == before, "it is not the loop's to remove"
    world.close()


def test_a_synthetic_set_that_is_none_is_named(tmp_path: Path) -> None:
    world = made_world(tmp_path, synthetic={"*": str(tmp_path / "nowhere")})
    given_up_corpus(world)
    found = decision(world)
    assert found.action is LoopAction.WAIT
    assert f"training.synthetic: got '{tmp_path}/nowhere'" in found.why_not[0]
    assert "paceline synth" in found.why_not[0]
    world.close()


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"template": None}, "training.template"), ({"least_answers": 500}, "too few consented")],
)
def test_it_says_what_a_training_lacks(
    changed: dict[str, object], said: str, tmp_path: Path
) -> None:
    world = made_world(tmp_path, **changed)
    world.answers()
    given_up_corpus(world)
    assert said in decision(world).why_not[0]
    world.close()


def test_a_drafter_without_a_network_needs_one_to_go_on_from(tmp_path: Path) -> None:
    world = World(tmp_path, policy(tmp_path))
    world.live("base")
    world.answers()
    given_up_corpus(world)
    assert "training.init" in decision(world).why_not[0]
    (tmp_path / "start").mkdir()
    world.policy = policy(tmp_path, init=str(tmp_path / "start"))
    world.restart()
    assert decision(world).action is LoopAction.TRAIN
    world.close()


def test_a_job_that_fails_ends_the_change_and_is_not_repeated(tmp_path: Path) -> None:
    world = made_world(tmp_path)
    (tmp_path / "job.yaml").write_text("command: ['false']\n")
    world.answers()
    given_up_corpus(world)
    settle(world)
    change = world.loop.journal.changes()[0]
    assert change.stage is ChangeStage.STOPPED and "exit code 1" in change.reason
    assert world.end()["states"] == {"base": "live", "auto-2": "retired"}
    assert len(world.loop.journal.changes()) == 2
    world.close()


def test_a_promotion_by_hand_stops_the_job(tmp_path: Path) -> None:
    world = made_world(tmp_path)
    (tmp_path / "job.yaml").write_text("command: [sleep, '300']\ngrace_seconds: 1\n")
    world.answers()
    given_up_corpus(world)
    world.turn()
    world.turn()
    world.live("other", cohort=SHOP, since_days=0.0)
    settle(world)
    assert "not live any more" in world.loop.journal.changes()[0].reason
    end = time.monotonic() + LONGEST
    while rows := world.store.database.rows("SELECT 1 FROM jobs WHERE ended IS NULL"):
        assert time.monotonic() < end, rows
        world.turn()
        time.sleep(0.1)
    (job,) = world.store.database.rows("SELECT state, stop FROM jobs")
    assert (job["state"], job["stop"]) == ("stopped", "its change is over")
    world.close()


@pytest.mark.slow
def test_the_real_trainer_goes_on_from_the_live_drafter(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    target = save_tiny(tmp_path / "tiny", blur=0.0, num_layers=5)
    data = write_set(tmp_path / "set", target, PROMPTS)
    first = drafter_of(config(target, data, tmp_path / "first", steps=4))
    known = identity(load_model(str(target)))
    made_for = TargetIdentity(
        known["name"], known["weights_sha256"], known["tokenizer_sha256"], known["template"]
    )
    shipped = yaml.safe_load((TEMPLATES / "subprocess.yaml").read_text())
    numbers = {"texts": 4, "micro": 2, "anchors": 8, "eval-every": 4, "threads": 1}
    small = [part for name, n in numbers.items() for part in (f"--{name}", str(n))]
    small += ["--dtype", "float32"]
    template = tmp_path / "job.yaml"
    template.write_text(yaml.safe_dump({**shipped, "command": [*shipped["command"], *small]}))
    training = {"template": str(template), "least_answers": 10, "epochs": 12.0}
    policy = AutospecPolicy.read({**POLICY.model_dump(mode="json"), "training": training})
    world = World(tmp_path, policy, made_for, str(target))
    world.live("base", spec=f"dflash:{first}")
    rows = [*read_rows(data, "train")]
    world.write(
        [
            world.request(
                SHOP, world.now - 600 + n, 2.4, "base", scope=SHARED,
                prompt_ids=list(row.ids[: row.spans[0][0]]),
                output_ids=list(row.ids[slice(*row.spans[0])]), expires=world.now + 14 * DAY,
            )
            for n, row in enumerate(rows)
        ]
    )  # fmt: skip
    given_up_corpus(world)
    world.al = {"base/shop": 2.4, "auto-2": 3.1}
    world.scores = {"base": 2.4, "auto-2": 3.1}
    settle(world, 240.0)
    change = world.loop.journal.changes()[0]
    (log,) = world.store.folder.glob("jobs/*/log.txt")
    assert change.stage is ChangeStage.LIVE, log.read_text()
    version = world.store.version("auto-2")
    assert version.spec == "dflash:{network}" and version.target == made_for
    trained = world.store.folders(version)["network"]
    provenance = json.loads((trained / "provenance.json").read_text())
    assert provenance["data"]["auto-2"]["user_data"] is True
    assert load_checkpoint(str(trained)).config == load_checkpoint(str(first)).config
    world.close()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_kill_at_every_point_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(folder: Path, at: int | None) -> tuple[World, bool]:
        folder.mkdir()
        world, killer = made_world(folder, looks_up=True), Killer(at)
        world.answers()
        given_up_corpus(world)
        world.al = {"base/shop": 2.4, "auto-2": 3.1}
        world.scores = {"base": 2.4, "auto-2": 3.1}
        world.serving.killer, was_killed = killer, False
        with killer.watching(monkeypatch):
            try:
                settle(world)
            except Killed:
                was_killed = True
                world.restart()
                settle(world)
        return world, was_killed

    clean, _ = run(tmp_path / "clean", None)
    expected = clean.end()
    clean.close()
    assert expected["live"] == {"": "base", SHOP: "auto-2"}
    at, was_killed = 0, True
    while was_killed:  # how often a job is looked after is a matter of time
        world, was_killed = run(tmp_path / str(at), at)
        assert world.end() == expected, f"killed at {at}"
        assert len(notes(world)) == 1, f"trained twice after a kill at {at}"
        assert max(world.serving.loads.values()) == 1
        assert left_over(world) == []
        version = world.store.version("auto-2")
        assert version.artefacts["corpus"] != world.store.version("base").artefacts["corpus"]
        world.close()
        at += 1
    assert at > 30
