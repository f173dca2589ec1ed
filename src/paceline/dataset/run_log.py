"""The log of a run of training, log.jsonl, and what it says of the run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from paceline.core import InvalidRequest
from paceline.dataset.folder_lock import writer_of

LOG = "log.jsonl"
POINTS = 400  # of a curve, at most
PHASES = ("target", "data", "drafter", "head", "optimiser")
KINDS = {"held_out": "held out", "foreign": "foreign", "out_of_domain": "out of domain"}
Entry = Mapping[str, Any]


class RunCurve(TypedDict):
    """Numbers by optimizer step; None where one is not finite."""

    step: list[int]
    value: list[float | None]


class ScoredSet(TypedDict):
    """Acceptance on one set: `al` incl. bonus of the last evaluation, `best` of all, `positions`
    the shares of the drafts that were accepted up to each position."""

    name: str
    kind: str
    al: float | None
    best: float | None
    positions: list[float | None]
    curve: RunCurve


class RunSpeed(TypedDict):
    """The last steps: `hours` of steps so far, `hours_left` to the planned end, the share of the
    machine's matmul peak, and milliseconds of a step by phase. None is a number that the log does
    not have."""

    hours: float | None
    hours_left: float | None
    slots_per_second: float | None
    peak_share: float | None
    step_ms: float | None
    phases: dict[str, float]


class RunForecast(TypedDict):
    """AL at the planned end, with its interval."""

    al: float
    low: float
    high: float


class RunState(TypedDict):
    """The state of a run. `speed` is None before the first steps are logged; `is_falling` says that
    the learning rate falls to the end; `fallen` maps sets to the share that their AL lost, `gaps`
    to their production gap, AL on held-out prompts minus AL on foreign ones."""

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
    gaps: dict[str, float | None]


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a run's log, [] where there is none. Raises InvalidRequest (field
    `folder`) for a log with a line that is no entry."""
    entries = []
    for number, line in enumerate(whole_lines(folder / LOG), 1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or "step" not in entry:
            expected = (
                f"a run whose {LOG} has a JSON object with a step in each line; line {number} is "
                "none"
            )
            raise InvalidRequest("folder", str(folder), expected)
        entries.append(entry)
    return entries


def whole_lines(path: Path) -> list[str]:
    """Return the complete lines of a log: a kill may have cut the last one."""
    if not path.is_file():
        return []
    return [line for line in path.read_text("utf-8").splitlines(True) if line.endswith("\n")]


@lru_cache(maxsize=16)
def _read_once(folder: Path, size: int, changed: int) -> list[dict[str, Any]]:
    """Return the entries of a log of `size` bytes that was last written to at `changed`, in
    nanoseconds: whoever looks every two seconds does not read it anew while nothing is added."""
    return read_log(folder)


def run_state(folder: Path) -> RunState:
    """Return what the log in a folder says of the run. Raises InvalidRequest as read_log() does."""
    log = folder / LOG
    told = log.stat() if log.is_file() else None
    entries = [] if told is None else _read_once(folder, told.st_size, told.st_mtime_ns)
    steps = [entry for entry in entries if "loss" in entry]
    scores = [entry for entry in entries if _scored_names(entry)]
    last = scores[-1] if scores else {}
    forecast: RunForecast | None = None
    if "forecast/al" in last:
        al, low, high = (float(last[f"forecast/{name}"]) for name in ("al", "low", "high"))
        forecast = {"al": al, "low": low, "high": high}
    return {
        "folder": str(folder),
        "step": int(entries[-1]["step"]) if entries else 0,
        "is_running": writer_of(folder) is not None,
        "is_falling": any("decay_steps" in entry for entry in entries),
        "speed": _speed(steps[-1]) if steps else None,
        "loss": _curve(steps, "loss"),
        "train_al": _curve(steps, "train/al"),
        "sets": [_scored(name, scores) for name in _scored_names(last)],
        "forecast": forecast,
        "fallen": {
            name.removeprefix("regression/"): share
            for name, share in last.items()
            if name.startswith("regression/")
        },
        "gaps": {
            name.removeprefix("gap/"): _finite(last, name)
            for name in last
            if name.startswith("gap/")
        },
    }


def _speed(entry: Entry) -> RunSpeed:
    seconds = _finite(entry, "seconds_per_step")
    return {
        "hours": _finite(entry, "hours"),
        "hours_left": _finite(entry, "hours_left"),
        "slots_per_second": _finite(entry, "slots_per_second"),
        "peak_share": _finite(entry, "peak_share/all"),
        "step_ms": None if seconds is None else 1e3 * seconds,
        "phases": {phase: entry[f"ms/{phase}"] for phase in PHASES if f"ms/{phase}" in entry},
    }


def _finite(entry: Entry, name: str) -> float | None:
    """Return a number of an entry, None where it has none or one that is not finite. The loss of
    a step whose objective is not finite is none: it is the mean over no slot."""
    number = entry.get(name)
    if name == "loss" and not math.isfinite(entry.get("objective", 0.0)):
        return None
    return None if number is None or not math.isfinite(number) else float(number)


def _scored_names(entry: Entry) -> list[str]:
    """Return the sets that an entry has scores of, as KIND/NAME."""
    lengths = (name.removesuffix("/al") for name in entry if name.endswith("/al"))
    return [name for name in lengths if name.partition("/")[0] in KINDS]


def _curve(entries: Sequence[Entry], name: str) -> RunCurve:
    """Return a number by step, the last value included, with steps left out evenly where there are
    more than POINTS."""
    having = [entry for entry in entries if name in entry]
    every = -(-len(having) // POINTS)
    shown = having[::-1][::every][::-1] if every else []
    return {"step": [int(e["step"]) for e in shown], "value": [_finite(e, name) for e in shown]}


def _scored(name: str, scores: Sequence[Entry]) -> ScoredSet:
    """Return the acceptance on a set, KIND/NAME."""
    kind, _, of = name.partition("/")
    last, positions, place = scores[-1], [_finite(scores[-1], f"{name}/first")], 2
    while f"{name}/position_{place}" in last:
        positions.append(_finite(last, f"{name}/position_{place}"))
        place += 1
    lengths = [_finite(entry, f"{name}/al") for entry in scores]
    return {
        "name": of,
        "kind": KINDS[kind],
        "al": _finite(last, f"{name}/al"),
        "best": max((length for length in lengths if length is not None), default=None),
        "positions": positions,
        "curve": _curve(scores, f"{name}/al"),
    }


def duration(hours: float | None) -> str:
    """Return a time as people read it."""
    if hours is None:
        return "an unknown time"
    minutes, seconds = divmod(round(3600 * hours), 60)
    whole, minutes = divmod(minutes, 60)
    return f"{whole}:{minutes:02d}:{seconds:02d} h" if whole else f"{minutes}:{seconds:02d} min"
