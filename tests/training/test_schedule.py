"""Warm-up, stable phase and decay; runs that stop early, last some hours, or are made longer."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core import InvalidRequest
from paceline.dataset.run_log import read_log
from paceline.training import trainer as trainer_module
from paceline.training.config import TrainConfig
from paceline.training.evaluation import Score
from paceline.training.run import train
from paceline.training.schedule import FIRST_SHARE, STOPPED, TIMED, Schedule
from paceline.training.state import STABLE, STATE
from tests.training.runs import SMALL, config, drafter_of, lengths, losses, quiet


def schedule(total: int | None, **settings: Any) -> Schedule:
    return Schedule(TrainConfig(**SMALL | {"steps": total} | settings), total)


def shares(made: Schedule, steps: int) -> list[float]:
    found = []
    for step in range(steps):
        made.decide(step, 1.0 + step)
        found.append(made.lr_share(step))
    return found


def test_the_learning_rate_rises_stays_and_falls_to_its_last_share() -> None:
    found = shares(schedule(100, warmup=0.1, decay=0.2, final_lr=0.05), 100)
    assert found[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert found[10:80] == [1.0] * 70
    assert found[80:] == sorted(found[80:], reverse=True)
    assert found[84] == pytest.approx(0.05 + 0.95 * (1 - math.sqrt(0.25)))
    assert found[99] == pytest.approx(0.05)


def test_the_stable_phase_does_not_depend_on_the_number_of_steps() -> None:
    short, longer = schedule(100), schedule(100)
    longer.restore(short.saved())
    longer.total = 1000
    assert shares(longer, 80) == shares(short, 80)
    assert shares(longer, 800)[80:] == [1.0] * 720


def test_the_warm_up_is_as_long_as_later_steps_say() -> None:
    """The first step waits for an evaluation, and on CUDA for kernels to be loaded."""
    made = schedule(None, hours=1.0, decay=0.2, warmup=0.05)
    made.decide(1, 400.0)
    made.decide(TIMED, 400.0 + 4 * 2.0)  # 1596 more steps in the hour
    assert made.decisions.rising == math.ceil(0.05 * (TIMED + 1596))


def test_a_run_of_some_hours_decides_by_the_time_that_steps_take() -> None:
    made = schedule(None, hours=1.0, decay=0.2, warmup=0.05)
    assert made.lr_share(0) == FIRST_SHARE and made.end is None
    made.decide(TIMED, TIMED * 2.0)  # 1800 steps in the hour
    assert made.decisions.rising == 90
    assert not made.decide(1439, 2878.0)
    assert made.decide(1440, 2880.0)  # four fifths of the hour
    assert made.end == 1440 + 360
    again = schedule(None, hours=1.0, decay=0.2, warmup=0.05)
    again.restore(made.saved())  # whatever the time is now, what was decided holds
    assert not again.decide(1441, 9000.0) and again.end == 1800


def test_a_run_with_no_time_left_is_refused_by_name() -> None:
    made = schedule(None, hours=1.0)
    with pytest.raises(InvalidRequest, match=r"hours: got 1\.0; expected more than the 2 hours"):
        made.check(100, 7200.0)
    with pytest.raises(InvalidRequest, match="steps: got '10 steps'; expected more than the 12"):
        schedule(10).check(12, 1.0)


def test_a_stop_is_a_short_decay() -> None:
    made = schedule(1000, decay=0.2)
    assert made.stop(100, STOPPED)
    assert made.end == 110 and made.planned_otherwise(made.saved())
    assert not made.stop(105, STOPPED) and made.end == 110


def test_blocks_grow_early() -> None:
    made = schedule(100, short_block=2)
    assert [made.whole_blocks(step) for step in (0, 9, 10, 99)] == [False, False, True, True]
    assert schedule(100).whole_blocks(0)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return torch.load(out / STATE, weights_only=True)["drafter"]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_longer_run_goes_on_from_before_the_decay(target, trainset, tmp_path) -> None:
    """It takes the steps that a run of that length would have taken from its start."""
    settings = {"optimizer": "muon", "warmup": 0.0, "save_every": 100, "eval_every": 10}
    train(config(target, trainset, tmp_path / "at-once", steps=20, **settings), quiet)
    out = tmp_path / "longer"
    train(config(target, trainset, out, steps=10, **settings), quiet)
    assert torch.load(out / STABLE, weights_only=True)["step"] == 8
    annealed = weights(out)
    train(config(target, trainset, out, steps=10, **settings), quiet)
    assert same(weights(out), annealed), "a finished run stays as it is"
    train(config(target, trainset, out, steps=20, **settings), quiet)
    assert same(weights(out), weights(tmp_path / "at-once"))


def test_the_best_drafter_stays_while_a_longer_run_is_worse(
    target, trainset, tmp_path, monkeypatch
) -> None:
    out = tmp_path / "run"
    settings = {"anchors": 32, "save_every": 100, "eval_every": 10}
    drafter = drafter_of(config(target, trainset, out, steps=10, **settings))
    before = (drafter / "model.safetensors").read_bytes()
    progress = torch.load(out / STATE, weights_only=True)["progress"]
    worse = {"tiny-set": Score(9, 1.0, (0.0,) * 5)}
    monkeypatch.setattr(trainer_module.Trainer, "_scores", lambda self, packs: worse)
    train(config(target, trainset, out, steps=20, **settings), quiet)
    after = torch.load(out / STATE, weights_only=True)["progress"]
    assert (after["best"], after["best_length"]) == (progress["best"], progress["best_length"])
    assert (drafter / "model.safetensors").read_bytes() == before


def test_patience_of_a_longer_run_does_not_wait_for_the_annealed_score(
    target, trainset, tmp_path, monkeypatch
) -> None:
    """Weights of the stable phase score less than annealed ones for long: they are compared with
    one another, and the annealed drafter is kept until a better one comes."""
    out = tmp_path / "run"
    settings = {"save_every": 100, "eval_every": 2, "patience": 2}

    def scores(self: Any, packs: dict[str, Any]) -> dict[str, Score]:
        length = 3.0 if self.schedule.end == 10 and self.schedule.decaying else 1 + self.step / 100
        return dict.fromkeys(packs, Score(9, length, (length - 1,) * 5))

    monkeypatch.setattr(trainer_module.Trainer, "_scores", scores)
    train(config(target, trainset, out, steps=10, **settings), quiet)
    state = torch.load(out / STATE, weights_only=True)
    best = state["step"], state["progress"]["best"], state["progress"]["best_length"]
    assert best == (10, 10, 3.0)
    result = train(config(target, trainset, out, steps=30, **settings), quiet)
    state = torch.load(out / STATE, weights_only=True)
    assert result.why is None and state["step"] == 30
    assert (state["progress"]["best"], state["progress"]["best_length"]) == (10, 3.0)


def test_a_state_with_a_count_of_its_patience_goes_on(
    target, trainset, tmp_path, monkeypatch
) -> None:
    """Earlier releases saved the count, and counted from the best drafter that was kept."""
    out = tmp_path / "run"
    settings = {"save_every": 100, "eval_every": 2, "patience": 2}

    def scores(self: Any, packs: dict[str, Any]) -> dict[str, Score]:
        return dict.fromkeys(packs, Score(9, 1 + self.step / 100, (self.step / 100,) * 5))

    monkeypatch.setattr(trainer_module.Trainer, "_scores", scores)
    train(config(target, trainset, out, steps=10, **settings), quiet)
    for name in (STATE, STABLE):
        state = torch.load(out / name, weights_only=True)
        counted = {"waited": 2, "best_outside": 9.0, "waited_outside": 9}
        torch.save(state | {"progress": state["progress"] | counted}, out / name)
    train(config(target, trainset, out, steps=12, **settings), quiet)
    assert torch.load(out / STATE, weights_only=True)["step"] == 12


def interrupted(monkeypatch, step: int, number: int) -> None:
    """Send this process a signal in a step, as Ctrl-C does."""
    real = trainer_module.Trainer.take_step

    def take_step(self: Any) -> None:
        real(self)
        if self.step == step and not self.schedule.decaying:
            os.kill(os.getpid(), number)
            time.sleep(0.01)

    monkeypatch.setattr(trainer_module.Trainer, "take_step", take_step)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_a_stopped_run_is_annealed_and_goes_on(number, target, trainset, tmp_path, monkeypatch):
    usual = signal.getsignal(number)
    whole = config(target, trainset, tmp_path / "whole", steps=40)
    train(whole, quiet)
    out = tmp_path / "stopped"
    settings = config(target, trainset, out, steps=40)
    with monkeypatch.context() as patched:
        interrupted(patched, 20, number)
        result = train(settings, quiet)
    assert result.why == "the run was stopped; the same command goes on from step 20"
    assert (out / "drafter").exists() and signal.getsignal(number) == usual
    shares = [row["lr_share"] for row in read_log(out) if "lr_share" in row]
    assert max(losses(out)) == 22 and shares[-1] < 0.5
    train(settings, quiet)
    assert same(weights(out), weights(whole.folder))
    assert lengths(out) == lengths(whole.folder)


@pytest.fixture
def usual_interrupts() -> Iterator[None]:
    """Ctrl-C as in a terminal: whoever started the tests in the background may have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_interrupts")
def test_a_second_signal_ends_a_run_at_once(target, trainset, tmp_path, monkeypatch) -> None:
    """What came before the first one is not lost."""
    out = tmp_path / "run"
    real = trainer_module.Trainer.take_step

    def take_step(self: Any) -> None:
        real(self)
        if self.step >= 6:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    with monkeypatch.context() as patched:
        patched.setattr(trainer_module.Trainer, "take_step", take_step)
        with pytest.raises(KeyboardInterrupt):
            train(config(target, trainset, out, steps=20, save_every=100), quiet)
    said: list[str] = []
    train(config(target, trainset, out, steps=20, save_every=100), said.append)
    assert said[0].startswith("going on at step 6 of 20 steps")


def test_hours_end_a_run_with_a_decay(target, trainset, tmp_path) -> None:
    out = tmp_path / "run"
    result = train(config(target, trainset, out, hours=3 / 3600, eval_every=10**6), quiet)
    state = torch.load(out / STATE, weights_only=True)
    decisions = state["schedule"]
    assert decisions["ends"] == "0.000833333 hours"
    assert state["step"] == decisions["decay_start"] + decisions["falling"]
    assert result.drafter is not None and state["seconds"] > 0
