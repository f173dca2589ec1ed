"""The trackers of a run's numbers: a file of JSON lines always, and others by name."""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from paceline.core import InvalidRequest
from paceline.dataset.run_log import LOG, whole_lines
from paceline.dataset.training_set import write_whole

PROJECT = "paceline"


class Tracker(Protocol):
    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class JsonLines:
    """Appends to log.jsonl. A resumed run first drops the entries behind the step it resumes at."""

    def __init__(self, folder: Path, step: int) -> None:
        self._path = folder / LOG
        kept = [line for line in whole_lines(self._path) if json.loads(line)["step"] < step]
        write_whole(self._path, "".join(kept).encode())

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **numbers}) + "\n")

    def close(self) -> None:
        pass


class TensorBoard:
    def __init__(self, name: str, folder: Path, config: Mapping[str, object], step: int) -> None:
        tracker_package(name)
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / name), purge_step=step or None)
        self._writer.add_text("config", json.dumps(dict(config), indent=1))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbLike:
    """wandb, and trackio, which has the same interface but knows a run by its name."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, object], step: int) -> None:
        self._module = tracker_package(name)
        run = _remembered(folder, name) or _remember(folder, name, uuid.uuid4().hex[:8])
        identity = {"name": f"{folder.name}-{run}"}
        if name == "wandb":
            identity = {"name": folder.name, "id": run}
        self._module.init(project=PROJECT, config=dict(config), resume="allow", **identity)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._module.log(dict(numbers), step=step)

    def close(self) -> None:
        self._module.finish()


class MLflow:
    def __init__(self, name: str, folder: Path, config: Mapping[str, object], step: int) -> None:
        self._module = tracker_package(name)
        self._module.set_experiment(PROJECT)
        before = _remembered(folder, name)
        if before is not None:
            self._module.start_run(run_id=before)
            return
        run = self._module.start_run(run_name=folder.name)
        self._module.log_params({name: str(value)[:500] for name, value in config.items()})
        _remember(folder, name, str(run.info.run_id))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        renamed = {name.replace("@", "_at_"): value for name, value in numbers.items()}
        self._module.log_metrics(renamed, step=step)

    def close(self) -> None:
        self._module.end_run()


def _remembered(folder: Path, tracker: str) -> str | None:
    """Return the tracker's name of the run in this folder, where an interrupted run began it."""
    path = folder / f"{tracker}.id"
    return path.read_text("utf-8") if path.is_file() else None


def _remember(folder: Path, tracker: str, run: str) -> str:
    write_whole(folder / f"{tracker}.id", run.encode())
    return run


KINDS: dict[str, Callable[..., Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandbLike,
    "trackio": WandbLike,
    "mlflow": MLflow,
}


def open_trackers(
    names: Sequence[str], folder: Path, config: Mapping[str, object], step: int
) -> list[Tracker]:
    """Open the log of JSON lines, and the trackers named; a run that goes on at `step` goes on
    there too. Raises InvalidRequest (field `trackers`) where a package is not installed."""
    if step == 0:
        for name in names:
            (folder / f"{name}.id").unlink(missing_ok=True)
    others = [KINDS[name](name, folder, config, step) for name in names]
    return [JsonLines(folder, step), *others]


def tracker_package(name: str) -> Any:
    """Import the package of a tracker; raise InvalidRequest where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        expected = f"an installed package: pip install {name}"
        raise InvalidRequest("trackers", name, expected) from error
