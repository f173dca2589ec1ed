"""Runs that are interrupted, and runs of several processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from paceline.cli import main
from paceline.core import InvalidRequest
from paceline.dataset.folder_lock import locked
from paceline.dataset.run_log import read_log
from paceline.models.dflash import checkpoint as checkpoint_module
from paceline.models.dflash.checkpoint import load_checkpoint
from paceline.training import state as state_module
from paceline.training import trainer as trainer_module
from paceline.training.run import prepare, train
from paceline.training.state import DiskFull
from paceline.training.workers import Workers
from tests.training.conftest import PROMPTS, write_set
from tests.training.runs import arguments, config, drafter_of, lengths, losses, quiet

COSTS = (1.1, 1.12, 1.14, 1.16, 1.18)  # of rounds that draft 1, 2, … tokens
FILES = {"drafter", "log.jsonl", "stable.pt", "state.pt"}


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adamw"},
        {"optimizer": "muon", "generation": "dflash2"},
        {"mix": {"ce": 0.5, "on_policy": 0.5}, "layers": None, "taps": None, "block": None},
        {"mix": {"ce": 0.5, "expected_speedup": 0.5}, "soft_tokens": 8, "round_costs": COSTS},
    ],
    ids=str,
)
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(
    options, target, trainset, tmp_path, monkeypatch
):
    options = {"steps": 12, **options}
    if "mix" in options:  # it goes on from a drafter: blocks of its own, where it errs
        options["init"] = str(drafter_of(config(target, trainset, tmp_path / "first", steps=4)))
    train(config(target, trainset, tmp_path / "whole", **options), quiet)
    broken = config(target, trainset, tmp_path / "broken", **options)
    real = trainer_module.Trainer.take_step

    def stops(self: Any) -> None:
        if self.step == 6:
            raise KeyboardInterrupt
        real(self)

    monkeypatch.setattr(trainer_module.Trainer, "take_step", stops)
    with pytest.raises(KeyboardInterrupt):
        train(broken, quiet)
    monkeypatch.setattr(trainer_module.Trainer, "take_step", real)
    train(broken, quiet)
    for name in ("model.safetensors", "config.json", "provenance.json"):
        whole, resumed = ((tmp_path / run / "drafter" / name) for run in ("whole", "broken"))
        assert whole.read_bytes() == resumed.read_bytes(), name
    assert lengths(tmp_path / "whole") == lengths(tmp_path / "broken")
    assert losses(tmp_path / "whole") == losses(tmp_path / "broken")


@pytest.mark.parametrize(
    ("end", "left"),
    [({"steps": 24}, 2.0 * (24 - 20) / 20), ({"hours": 3.0}, 3.0 - 2.0)],
    ids=["steps", "hours"],
)
def test_the_clock_of_a_resumed_run_goes_on(end, left, target, trainset, tmp_path, monkeypatch):
    out, kill_at = tmp_path / "run", 12
    real = trainer_module.Trainer.take_step

    def step(self: Any) -> None:
        if self.step == kill_at:
            raise KeyboardInterrupt
        real(self)

    monkeypatch.setattr(trainer_module.Trainer, "take_step", step)
    settings = config(target, trainset, out, **end)
    with pytest.raises(KeyboardInterrupt):
        train(settings, quiet)
    state = torch.load(out / "state.pt", weights_only=True)
    assert state["step"] == 12
    state["seconds"], state["since"]["all_seconds"] = 2 * 3600.0, 3600.0  # steps, and all else
    torch.save(state, out / "state.pt")
    kill_at = 21
    with pytest.raises(KeyboardInterrupt):
        train(settings, quiet)
    (entry,) = (entry for entry in read_log(out) if entry["step"] == 20 and "hours" in entry)
    minute = 1 / 60
    assert 1.0 < entry["hours"] < 1.0 + minute
    assert entry["hours_left"] == pytest.approx(left, abs=minute)


def test_a_killed_process_resumes_to_the_same_weights(target, trainset, tmp_path):
    """kill -9 at any time, saves included: here as soon as the first save appears, twice."""
    train(config(target, trainset, tmp_path / "whole", steps=24, save_every=1), quiet)
    out = tmp_path / "killed"
    command = [
        "train", str(trainset), "--model", str(target), "--out", str(out), "--steps", "24",
        "--save-every", "1", *arguments("save_every"),
    ]  # fmt: skip
    for kills in range(2):
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline.cli", *command], stdout=subprocess.DEVNULL
        )
        before = (out / "state.pt").stat().st_mtime_ns if kills else 0
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if (out / "state.pt").exists() and (out / "state.pt").stat().st_mtime_ns != before:
                break
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert main(command) == 0
    whole, killed = (load_file(run / "drafter" / "model.safetensors")
                     for run in (tmp_path / "whole", out))  # fmt: skip
    assert all(torch.equal(whole[name], killed[name]) for name in whole)


def test_a_kill_between_the_renames_of_the_drafter_is_mended(target, trainset, tmp_path):
    out = tmp_path / "run"
    drafter = drafter_of(config(target, trainset, out, steps=4))
    drafter.rename(out / "drafter.old")
    (out / "drafter.new").mkdir()
    train(config(target, trainset, out, steps=4), quiet)
    assert load_checkpoint(drafter).config.block_size == 6
    assert {path.name for path in out.iterdir()} == FILES


def test_a_full_disk_keeps_what_was_saved(target, trainset, tmp_path, monkeypatch):
    out = tmp_path / "run"
    real = state_module.write_whole

    def full(path: Path, data: bytes) -> None:
        if writes.append(path) or len(writes) > 2:
            raise OSError(28, "No space left on device")
        real(path, data)

    writes: list[Path] = []
    monkeypatch.setattr(state_module, "write_whole", full)
    with pytest.raises(DiskFull, match="No space left"):
        train(config(target, trainset, out, steps=12), quiet)
    monkeypatch.setattr(state_module, "write_whole", real)
    said: list[str] = []
    train(config(target, trainset, out, steps=12), said.append)
    assert said[0].startswith("going on at step 4 of 12 steps")


def test_a_second_run_in_the_folder_is_refused_by_name(target, trainset, tmp_path):
    out = tmp_path / "run"
    train(config(target, trainset, out, steps=4), quiet)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    with locked(out), pytest.raises(InvalidRequest) as caught:
        train(config(target, trainset, out, steps=4), quiet)
    assert f"out: got {str(out)!r}" in str(caught.value)
    assert f"process {os.getpid()} is" in str(caught.value)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    train(config(target, trainset, out, steps=4), quiet)


def test_a_full_disk_while_a_drafter_is_written_keeps_the_one_before(
    target, trainset, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    drafter = drafter_of(config(target, trainset, out, steps=4))
    before = (drafter / "model.safetensors").read_bytes()

    def full(*given: Any, **named: Any) -> None:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(checkpoint_module, "save_tensors", full)
    longer = config(target, trainset, out, steps=4)
    trainer = prepare(longer, Workers("cpu"))
    trainer.resume()
    with pytest.raises(DiskFull, match="the one before is still there"):
        trainer.export(trainer.progress, 4)
    assert (drafter / "model.safetensors").read_bytes() == before
    assert {path.name for path in out.iterdir()} == FILES


def test_sets_may_move_but_not_change(target, trainset, tmp_path):
    """A run goes on with the same sets wherever they lie, and with no others."""
    out = tmp_path / "run"
    train(config(target, trainset, out, steps=4), quiet)
    moved = tmp_path / "elsewhere" / trainset.name
    shutil.copytree(trainset, moved)
    assert train(config(target, moved, out, steps=4), quiet).drafter is not None
    other = write_set(tmp_path / "other" / trainset.name, target, PROMPTS[::-1])
    with pytest.raises(InvalidRequest, match=r"sets: got .* expected what the run in"):
        train(config(target, other, out, steps=4), quiet)


@pytest.mark.parametrize(
    "sharded",
    [
        pytest.param(False, id="DDP", marks=pytest.mark.slow),
        pytest.param(True, id="FSDP2 target", marks=pytest.mark.slow),
    ],
)
def test_two_processes_have_the_loss_curve_of_one(sharded, target, trainset, tmp_path):
    """With the target whole in each of them, and with its layers spread over both."""
    settings = {"steps": 8, "mix": {"ce": 0.5, "kl": 0.5}}
    train(config(target, trainset, tmp_path / "one", **settings), quiet)
    options = ["--shard-target", *arguments("features_gb")] if sharded else arguments()
    subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
            "-m", "paceline.cli", "train", str(trainset), "--model", str(target),
            "--out", str(tmp_path / "two"), "--steps", "8", "--mix", "ce=0.5,kl=0.5", *options,
        ],
        check=True, timeout=240, stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    one, two = (read_log(tmp_path / name) for name in ("one", "two"))
    assert [row["step"] for row in one] == [row["step"] for row in two]
    for ours, theirs in zip(one, two, strict=True):
        for key in ("loss", "train/al", "grad_norm", "held_out/tiny-set/al"):
            if key in ours:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-3), (ours["step"], key)


def test_other_settings_for_a_run_that_began_are_refused(target, trainset, tmp_path):
    out = tmp_path / "run"
    train(config(target, trainset, out, steps=4), quiet)
    with pytest.raises(InvalidRequest, match=r"lr: got 0\.1; expected 0\.003, as the run"):
        train(config(target, trainset, out, steps=4, lr=0.1), quiet)
