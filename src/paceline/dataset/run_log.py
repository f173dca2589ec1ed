"""The log of a run of training, log.jsonl, and what it says of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from paceline.dataset.folder_lock import writer_of

LOG = "log.jsonl"
POINTS = 400  # of a curve, at most
PHASES = ("target", "data", "drafter", "head", "optimiser")
KINDS = {"held_out": "held out", "foreign": "foreign", "out_of_domain": "out of domain"}
Entry = Mapping[str, Any]


class RunCurve(TypedDict):
    """Numbers by optimizer step."""

    step: list[int]
    value: list[float]


class ScoredSet(TypedDict):
    """Acceptance on one set: `al` incl. bonus of the last evaluation, `best` of all, `positions`
    the shares of the drafts that were accepted up to each position."""

    name: str
    kind: str
    al: float
    best: float
    positions: list[float]
    curve: RunCurve


class RunSpeed(TypedDict):
    """The last steps: `hours` of steps so far, `hours_left` to the planned end (None in a log of an
    earlier version), and milliseconds of a step by phase."""

    hours: float
    hours_left: float | None
    slots_per_second: float
    peak_share: float
    step_ms: float
    phases: dict[str, float]


class RunForecast(TypedDict):
    """AL at the planned end, with its interval."""

    al: float
    low: float
    high: float


class RunState(TypedDict):
    """The state of a run. `speed` is None before the first steps are logged; `is_falling` says that
    the learning rate falls to the end; `fallen` maps sets to the share that their AL lost."""

    folder: str
    step: int
    is_running: bool
    is_falling: bool
    speed: RunSpeed | None
    loss: RunCurve
    train_al: RunCurve
    sets: list[ScoredSet]
    forecast: RunForecast | None
    fallen: dict[str, float]


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a run's log, [] where there is none."""
    return [json.loads(line) for line in whole_lines(folder / LOG)]


def whole_lines(path: Path) -> list[str]:
    """Return the complete lines of a log: a kill may have cut the last one."""
    if not path.is_file():
        return []
    return [line for line in path.read_text("utf-8").splitlines(True) if line.endswith("\n")]


def run_state(folder: Path) -> RunState:
    """Return what the log in a folder says of the run."""
    entries = read_log(folder)
    steps = [entry for entry in entries if "loss" in entry]
    scores = [entry for entry in entries if any(name.endswith("/first") for name in entry)]
    last = scores[-1] if scores else {}
    forecast: RunForecast | None = None
    if "forecast/al" in last:
        al, low, high = (last[f"forecast/{name}"] for name in ("al", "low", "high"))
        forecast = {"al": al, "low": low, "high": high}
    return {
        "folder": str(folder),
        "step": int(entries[-1]["step"]) if entries else 0,
        "is_running": writer_of(folder) is not None,
        "is_falling": any("decay_steps" in entry for entry in entries),
        "speed": _speed(steps[-1]) if steps else None,
        "loss": _curve(steps, "loss"),
        "train_al": _curve(steps, "train/al"),
        "sets": [_scored(name, scores) for name in last if name.endswith("/first")],
        "forecast": forecast,
        "fallen": {
            name.removeprefix("regression/"): share
            for name, share in last.items()
            if name.startswith("regression/")
        },
    }


def _speed(entry: Entry) -> RunSpeed:
    return {
        "hours": entry["hours"],
        "hours_left": entry.get("hours_left"),
        "slots_per_second": entry["slots_per_second"],
        "peak_share": entry.get("peak_share/all", 0.0),
        "step_ms": 1e3 * entry["seconds_per_step"],
        "phases": {phase: entry.get(f"ms/{phase}", 0.0) for phase in PHASES},
    }


def _curve(entries: Sequence[Entry], name: str) -> RunCurve:
    """Return a number by step, the last value included, with steps left out evenly where there are
    more than POINTS."""
    having = [entry for entry in entries if name in entry]
    every = -(-len(having) // POINTS)
    shown = having[::-1][::every][::-1] if every else []
    return {"step": [int(e["step"]) for e in shown], "value": [e[name] for e in shown]}


def _scored(first: str, scores: Sequence[Entry]) -> ScoredSet:
    """Return the acceptance on the set whose first position is logged as `first`."""
    name = first.removesuffix("/first")
    kind, _, of = name.partition("/")
    last, curve = scores[-1], _curve(scores, f"{name}/al")
    positions, place = [last[first]], 2
    while f"{name}/position_{place}" in last:
        positions.append(last[f"{name}/position_{place}"])
        place += 1
    return {
        "name": of,
        "kind": KINDS.get(kind, kind),
        "al": curve["value"][-1],
        "best": max(entry[f"{name}/al"] for entry in scores if f"{name}/al" in entry),
        "positions": positions,
        "curve": curve,
    }
