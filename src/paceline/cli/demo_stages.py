"""Stages of a story: `paceline` commands that are shown, run, and not repeated once they are
done.

What is done is kept beside what was made: by which command, and in how many seconds.
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
from typing import Any

from rich.console import Console
from rich.text import Text

from paceline.dataset.training_set import write_whole

RECORD = "stages.json"


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


Execute = Callable[[Sequence[str]], int]


def execute(command: Sequence[str]) -> int:
    """Run `paceline` with these arguments by the same interpreter. Return its exit code."""
    return subprocess.run([sys.executable, "-m", "paceline.cli", *command], check=False).returncode


def run_stages(
    console: Console,
    folder: Path,
    stages: Sequence[Stage],
    of: int,
    execute: Execute = execute,
) -> int:
    """Run the stages that are not done, in order, and every stage behind one that ran.

    Returns 0, or the exit code of the stage that failed: it is the last one then. `of` is how many
    chapters the story has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    anew = False
    for number, stage in enumerate(stages, 1):
        headline(console, number, of, stage.title, stage.why, stage.command)
        entry = read_record(folder).get(stage.name, {})
        if anew or entry.get("command") != list(stage.command) or not stage.makes.exists():
            anew = True
            code = _run(console, folder, stage, execute)
            if code != 0:
                return code
        else:
            say(console, f"done before, in {minutes(entry['seconds'])}: not repeated", "green")
        for line in stage.gave():
            say(console, line, "bold")
    return 0


def _run(console: Console, folder: Path, stage: Stage, execute: Execute) -> int:
    _keep(folder, stage.name, None)  # from here on what it made before no longer counts
    started = time.perf_counter()
    code = execute(stage.command)
    if code != 0:
        say(
            console,
            f"'paceline {stage.command[0]}' ended with exit code {code}; what is wrong stands "
            f"above. Once it is mended, `make demo-train` goes on from here; without {folder} it "
            "begins anew.",
            "bold red",
        )
        return code
    seconds = time.perf_counter() - started
    _keep(folder, stage.name, {"command": list(stage.command), "seconds": seconds})
    say(console, f"done in {minutes(seconds)}", "green")
    return 0


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
    """Return the seconds of each stage in the run that finished it."""
    record = read_record(folder)
    return {name: float(record[name]["seconds"]) for name in names}


def read_record(folder: Path) -> dict[str, Any]:
    """Return the record of finished stages, {} where it is missing or cannot be read."""
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _keep(folder: Path, name: str, entry: dict[str, Any] | None) -> None:
    record = {key: value for key, value in read_record(folder).items() if key != name}
    if entry is not None:
        record[name] = entry
    write_whole(folder / RECORD, json.dumps(record, indent=1).encode() + b"\n")
