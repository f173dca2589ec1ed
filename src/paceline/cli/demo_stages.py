"""Stages of a story: `paceline` commands that are shown, run, and not repeated once they are
done.

What is done is kept beside what was made: by which command, and in how many seconds. The seconds of
a stage are those of all its parts, where it was killed and goes on.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired

from pydantic import TypeAdapter
from rich.console import Console
from rich.text import Text
from typing_extensions import TypedDict  # pydantic reads these before Python 3.12

from paceline.core.signals import die_with_parent
from paceline.dataset.training_set import write_whole

RECORD = "stages.json"
BEAT = 5.0  # seconds between two notes of how long a stage has run


@dataclass(frozen=True, slots=True)
class Stage:
    """A command of the story. `command` is the line behind `paceline`, `makes` a file or folder
    that exists when it is done, and `gave` returns a few lines about the result."""

    name: str
    title: str
    why: str
    command: tuple[str, ...]
    makes: Path
    gave: Callable[[], list[str]]


class StageRecord(TypedDict):
    """The record of a stage: its command, the seconds that it took up to now, and whether it has
    `begun` and is not finished yet."""

    command: list[str]
    seconds: float
    begun: NotRequired[bool]


Execute = Callable[[Sequence[str], Callable[[], None]], int]


def execute(command: Sequence[str], beat: Callable[[], None]) -> int:
    """Run `paceline` with these arguments by the same interpreter, as long as we live, and call
    `beat` every few seconds. Return its exit code."""
    program = [sys.executable, "-m", "paceline.cli", *command]
    with subprocess.Popen(program, preexec_fn=die_with_parent) as child:
        try:
            while True:
                try:
                    return child.wait(BEAT)
                except subprocess.TimeoutExpired:
                    beat()
        except BaseException:  # Ctrl-C
            child.kill()
            raise


def run_stages(
    console: Console, folder: Path, stages: Sequence[Stage], of: int, execute: Execute = execute
) -> int:
    """Run the stages that are not done, in order, and every stage behind one that ran.

    Returns 0, or the exit code of the stage that failed: it is the last one then. `of` is how many
    chapters the story has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    anew = False
    for number, stage in enumerate(stages, 1):
        headline(console, number, of, stage.title, stage.why, stage.command)
        record = _read_record(folder)
        done = record.pop(stage.name, None)
        if (
            anew
            or done is None
            or done.get("begun", False)
            or done["command"] != list(stage.command)
            or not stage.makes.exists()
        ):
            spent = 0.0 if anew else _spent(done, stage)
            anew = True
            code = _run(folder, stage, record, spent, execute)
            if code != 0:
                say(
                    console,
                    f"'paceline {stage.command[0]}' ended with exit code {code}; what is wrong "
                    "stands above. Once it is mended, `make demo-train` goes on from here; without "
                    f"{folder} it begins anew.",
                    "bold red",
                )
                return code
            seconds = record[stage.name]["seconds"]
            record[stage.name] = {"command": list(stage.command), "seconds": seconds}
            _write_record(folder, record)
            say(console, f"done in {minutes(seconds)}", "green")
        else:
            say(console, f"done before, in {minutes(done['seconds'])}: not repeated", "green")
        for line in stage.gave():
            say(console, line, "bold")
    return 0


def _spent(done: StageRecord | None, stage: Stage) -> float:
    """Return the seconds that an unfinished stage has taken before."""
    if done is None or not done.get("begun") or done["command"] != list(stage.command):
        return 0.0
    return done["seconds"]


def _run(
    folder: Path, stage: Stage, record: dict[str, StageRecord], spent: float, execute: Execute
) -> int:
    """Run a stage that has taken so many seconds before, and return its exit code.

    How long it has run is noted again and again, so that a kill leaves it. From the first note on,
    what the stage made before no longer counts.
    """
    started = time.perf_counter()

    def note() -> None:
        seconds = spent + time.perf_counter() - started
        record[stage.name] = {"command": list(stage.command), "seconds": seconds, "begun": True}
        _write_record(folder, record)

    note()
    try:
        return execute(stage.command, note)
    finally:
        note()


def headline(
    console: Console, number: int, of: int, title: str, why: str, command: Sequence[str]
) -> None:
    console.print()
    console.rule(Text(f"{number} of {of}: {title}", style="bold"), align="left")
    say(console, why)
    say(console, f"$ paceline {shlex.join(command)}", "cyan")
    console.print()


def say(console: Console, text: str, style: str = "") -> None:
    """Print text as it is: paths and commands hold brackets, and lines are for copying."""
    console.print(Text(text, style=style), soft_wrap=True)


def minutes(seconds: float) -> str:
    """`48 s`, `3 min 20 s`."""
    rounded = round(seconds)
    return f"{rounded} s" if rounded < 60 else f"{rounded // 60} min {rounded % 60:02d} s"


def seconds_of(folder: Path, names: Sequence[str]) -> dict[str, float]:
    """Return the seconds of each stage, in all the runs that it took."""
    record = _read_record(folder)
    return {name: record[name]["seconds"] for name in names}


def _read_record(folder: Path) -> dict[str, StageRecord]:
    """Return the stages that have begun, by name; {} where no record can be read."""
    try:
        return TypeAdapter(dict[str, StageRecord]).validate_json((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return {}


def _write_record(folder: Path, record: dict[str, StageRecord]) -> None:
    write_whole(folder / RECORD, json.dumps(record, indent=1).encode() + b"\n")
