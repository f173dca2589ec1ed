"""Helpers for tests of whole runs: small settings, the log, and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from paceline.dataset.run_log import read_log
from paceline.training.config import TrainConfig
from paceline.training.feature_folder import SHA256, _digest
from paceline.training.run import prepare, train
from paceline.training.workers import Workers

OPTIONS: dict[str, Any] = {
    "layers": 2, "block": 6, "taps": 2, "mask_token": 250, "dtype": "float32", "threads": 1,
    "texts": 4, "micro": 2, "anchors": 8, "optimizer": "adamw", "lr": 3e-3, "features_gb": 0.1,
    "eval_every": 4, "save_every": 4,
}  # fmt: skip

STEP = {"loss": 1.0, "objective": 2.0, "al": 2.0, "grad_norm": 1.0, "lr_share": 0.5,
        "slots": 8.0, "blocks": 4.0}  # fmt: skip
SMALL: dict[str, Any] = {
    "model": "m",
    "sets": ("a/set",),
    "out": "run",
    "steps": 4,
}  # none is there


def config(target: Path, trainset: Path, out: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(
        model=str(target), sets=(str(trainset),), out=str(out), **{**OPTIONS, **changes}
    )


def quiet(text: str) -> None:
    pass


def learn_by_heart(settings: TrainConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Train on two texts until each slot is right, or the steps are over. Return the slots that are
    right and those that there are, [blocks, slots]."""
    trainer = prepare(settings, Workers("cpu"))
    trainer.order._texts = trainer.data.train[:2]
    assert settings.block is not None and settings.steps is not None
    pack = trainer._pack(trainer.order.step(0), settings.block)
    right = trainer.form.right(pack)
    while trainer.step < settings.steps and not torch.equal(right, pack.counts):
        for _ in range(20):
            trainer.take_step()
        right = trainer.form.right(pack)
    return right, pack.counts


def losses(out: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in read_log(out) if "loss" in row}


def lengths(out: Path) -> list[float]:
    return [row["held_out/tiny-set/al"] for row in read_log(out) if "held_out/tiny-set/al" in row]


def drafter_of(settings: TrainConfig) -> Path:
    """Trains, and gives the folder of the best drafter."""
    result = train(settings, quiet)
    assert result.drafter is not None, result.why
    return result.drafter


def alike(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def change_features(file: Path) -> None:
    """Change the features of a text on disk a little, with a checksum that fits."""
    tensors = load_file(file)
    del tensors[SHA256]
    tensors["features"] = tensors["features"] * 1.01
    save_file(tensors | {SHA256: _digest(tensors)}, file)


def arguments(without: str = "") -> list[str]:
    """OPTIONS as the command takes them, but for one."""
    return [part for name, value in OPTIONS.items() if name != without
            for part in (f"--{name.replace('_', '-')}", str(value))]  # fmt: skip


class Run:
    """`paceline train` in a process of its own, which a test stops, continues and kills."""

    def __init__(self, target: Path, trainset: Path, tmp_path: Path, *options: str) -> None:
        command = [
            sys.executable, "-m", "paceline", "train", str(trainset), "--model", str(target),
            "--out", str(tmp_path / "run"), "--features-folder", str(tmp_path / "features"),
            "--features-gb", "0", *options, *arguments("features_gb"),
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def until(self, said: Callable[[str], bool]) -> str:
        """Wait for a line of what it says, and return it."""
        assert self.process.stdout is not None
        return next(line for line in self.process.stdout if said(line))

    def send(self, number: signal.Signals) -> None:
        assert self.process.poll() is None, "it has ended"
        self.process.send_signal(number)

    def rest(self) -> list[str]:
        """Wait for the end; return what it said that nobody has read."""
        return self.process.communicate(timeout=100)[0].splitlines()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()


def texts_said(line: str) -> int:
    """Return the number of texts whose features are on disk, as a writer says it."""
    words = line.split()
    return int(words[2]) if words[:2] == ["features", "of"] else 0
