"""Drafters of other shapes and other steps beside each other, after equal time of training.

    python benchmarks/ablation.py MODEL SET [--minutes 2] [--out FOLDER] --arms 'NAME=OPTIONS' …
        [-- OPTION OF `paceline train` …]

SET is a folder of `paceline synth` with foreign prompts. An arm is a name and options of `paceline
train`, as '1 layer=--layers 1'; options behind `--` are those of every arm. Each arm trains from
random weights for as many minutes, one after another, or for --steps, with which arms of equal
slots are compared. Then `paceline evaluate` takes each drafter through the held-out and the
foreign prompts of the set, or through the parts that --choices names: acceptance length, and speed
against AR in turns, both with their 95% intervals. An arm that is finished in FOLDER is not
repeated.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import machine, table

from paceline.dataset.run_log import read_log

CHOICES = ("on_task", "foreign")  # what is judged unless --choices says otherwise
LOOK_UPS = ("ngram", "suffix")  # that `paceline evaluate` has beside every drafter


def arm_of(text: str) -> tuple[str, list[str]]:
    name, found, options = text.partition("=")
    if not (name and found):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=OPTIONS of `paceline train`")
    return name, shlex.split(options)


def command(name: str, *words: str) -> None:
    """Run a `paceline` command; raises SystemExit with what it said where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "paceline.cli", name, *words], capture_output=True, text=True
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise SystemExit(f"{name}: exit code {done.returncode}\n{said}")


def train(args: argparse.Namespace, run: Path, options: Sequence[str]) -> None:
    length = (
        [] if "--steps" in [*args.options, *options] else ["--hours", f"{args.minutes / 60:.6f}"]
    )
    command(
        "train", args.set, "--model", args.model, "--out", str(run), *length, *args.options,
        *options,
    )  # fmt: skip


def evaluate(args: argparse.Namespace, run: Path) -> None:
    sets = [f"{choice}={args.set}:{choice}" for choice in args.choices]
    command(
        "evaluate", args.model, str(run / "drafter"), *sets, "--temperatures", "0", "--prompts",
        str(args.prompts), "--tokens", str(args.tokens), "--out", str(run / "report.html"),
    )  # fmt: skip


def learnt(run: Path) -> tuple[int, float, float]:
    """Return the steps of a run, the slots that it learnt, and those of a second."""
    rows = [row for row in read_log(run) if "slots_per_second" in row]
    return rows[-1]["step"], rows[-1]["slots"], rows[-1]["slots_per_second"]


def cells(report: dict[str, Any]) -> Iterator[str]:
    """Yield AL and speed of the drafter on each set of a report."""
    for result in report["results"]:
        (name,) = (name for name in result["acceptance"] if name not in LOOK_UPS)
        length, speed = result["acceptance"][name], result["speed"][f"{name}/throughput"]
        yield between(length["al"], length["al_interval"])
        yield between(speed["speedup"], speed["speedup_interval"])


def between(middle: float, interval: Sequence[float] | None) -> str:
    """Return a number with its interval, which a few prompts do not have."""
    if interval is None:
        return f"{middle:.2f}"
    low, high = interval
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("set")
    parser.add_argument("--arms", nargs="+", type=arm_of, required=True, metavar="NAME=OPTIONS")
    parser.add_argument("--minutes", type=float, default=2, help="of each arm")
    parser.add_argument("--out", type=Path, help="keep the runs in this folder")
    parser.add_argument("--choices", nargs="+", default=list(CHOICES), help="parts of the set")
    parser.add_argument("--prompts", type=int, default=20, help="of each part")
    parser.add_argument("--tokens", type=int, default=64)
    argv, options = sys.argv[1:], []
    if "--" in argv:
        argv, options = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    args = parser.parse_args(argv)
    args.options = options
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.out or Path(scratch)
        for name, own in args.arms:
            run = folder / re.sub(r"\W+", "-", name)  # the drafter's name is read as a spec
            if not (run / "report.json").exists():
                train(args, run, own)
                evaluate(args, run)
            found = json.loads((run / "report.json").read_text())
            steps, slots, rate = learnt(run)
            rows.append((name, str(steps), f"{slots:.0f}", f"{rate:.0f}", *cells(found)))
            print(*rows[-1], sep=", ", flush=True)
    parts = [f"{what}, {part}" for part in args.choices for what in ("AL", "speed ÷ AR")]
    header = ("arm", "steps", "slots", "slots/s at the end", *parts)
    time = [] if "--steps" in args.options else [f"{args.minutes:g} minutes each"]
    training = ", ".join([*time, *([shlex.join(args.options)] if args.options else [])])
    prompts = f"{args.prompts} prompts of {args.tokens} tokens at T=0"
    table(f"{Path(args.set).name}: {training}; {prompts} ({machine()})", header, rows)


if __name__ == "__main__":
    main()
