"""The saved state of a run, written so that a kill loses nothing and the run goes on exactly
there.

state.pt      weights, optimizers, scores and the step, replaced in one go
stable.pt     the same before the learning rate fell, from where a longer run goes on
drafter/      the best drafter so far, a folder that serves; replaced in one go as well
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from paceline.core import InvalidRequest, PacelineError
from paceline.dataset.training_set import write_whole
from paceline.training.config import TrainConfig, default_of

STATE, STABLE, DRAFTER = "state.pt", "stable.pt", "drafter"
FORMAT = 2
# What a resumed run may be told anew: its end, and what changes nothing that is computed. Where
# paths lead is compared by content.
PATHS = ("out", "model", "sets", "init", "held_out", "out_of_domain")
ENDS = ("steps", "epochs", "hours")  # a run may be made longer
FREE = (
    *PATHS,
    *ENDS,
    "trackers",
    "features_gb",
    "features_folder",
    "features_folder_gb",
    "features_only",
    "features_wait",
    "features_wait_minutes",
    "features_passing",
    "target_python",
    "target_devices",
    "target_url",
    "threads",
    "save_every",
)
OF_INIT = ("regression", "on_regression")  # they have no effect without it, nor ever had


# What a disk that takes no more looks like from Python, from torch and from safetensors.
WRITING = (OSError, RuntimeError, SafetensorError)


class DiskFull(PacelineError):
    """A run's folder could not be written to. The save before is complete."""


def save_state(folder: Path, state: Mapping[str, object], name: str = STATE) -> None:
    """Save the state under `name`. Raises DiskFull where there is no room; the state before
    stays."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    try:
        write_whole(folder / name, buffer.getvalue())
    except WRITING as error:
        (folder / f"{name}.tmp").unlink(missing_ok=True)
        raise DiskFull(
            f"{folder / name} could not be written ({error}); the run is saved up to its last "
            "save: make room and start it again"
        ) from error


def load_state(
    folder: Path,
    config: Mapping[str, object],
    inputs: Mapping[str, object],
    name: str = STATE,
    model: type = TrainConfig,
) -> dict[str, Any] | None:
    """Return the state of an interrupted run, or None. `config` are settings of `model`, `inputs`
    digests of target, sets and drafter; `name` is STATE or STABLE.

    Raises InvalidRequest where the state belongs to a run with other settings or other inputs,
    naming the first that differs.
    """
    path = folder / name
    if not path.is_file():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if state["format"] != FORMAT:
        raise InvalidRequest("out", str(folder), "a run that this version of Paceline wrote")
    begun = {name: default_of(model, name) for name in config}  # where the run is older than those
    free = FREE if config.get("init") else (*FREE, *OF_INIT)
    for field, before in (begun | state["config"]).items():
        value = config.get(field)
        if field not in free and before != value:
            expected = f"{before!r}, as the run in {folder} began, or another --out"
            raise InvalidRequest(field, value, expected)
    for field, value in inputs.items():
        if state["inputs"].get(field) != value:
            expected = f"what the run in {folder} began with, or another --out"
            raise InvalidRequest(field, config[field], expected)
    return state


def replace_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder beside, and swap it in: the name always stands for a complete
    folder, or after a kill between two renames for the one before, which `restore_folder` brings
    back."""
    beside, old = _beside(folder)
    shutil.rmtree(beside, ignore_errors=True)
    try:
        write(beside)
        _settle(beside)
    except WRITING as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise DiskFull(
            f"{folder} could not be written ({error}); the one before is still there"
        ) from error
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(beside, folder)
    shutil.rmtree(old, ignore_errors=True)


def restore_folder(folder: Path) -> None:
    """Repair a folder after a kill in `replace_folder`."""
    beside, old = _beside(folder)
    if not folder.exists() and old.exists():
        os.replace(old, folder)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(beside, ignore_errors=True)


def _settle(folder: Path) -> None:
    """Flush the files of a folder to the disk before it is renamed."""
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _beside(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
