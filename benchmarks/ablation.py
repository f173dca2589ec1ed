"""Drafters of other shapes and other steps beside each other, after equal time of training.

    python benchmarks/ablation.py MODEL SET [--minutes 2] [--out FOLDER] --arms 'NAME=OPTIONS' …
        [-- OPTION OF `paceline train` …]

SET is a folder of `paceline synth` with foreign prompts. An arm is a name and options of `paceline
train`, as '1 layer=--layers 1'; options behind `--` are those of every arm. Each arm trains from
random weights for as many minutes, one after another, or for --steps, with which arms of equal
slots are compared. Then `paceline evaluate` takes each drafter through the held-out and the
foreign prompts of the set, or through the parts that --choices names: acceptance length, and speed
against AR in turns, both with their 95% intervals, and beside each drafter the speed of suffix
look-ups in the same turns, warmed with answers of the train split. Their own row has the median of
their speeds. An arm that is finished in FOLDER is not repeated.
"""

from __future__ import annotations

import argparse
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import machine, table

from paceline.bench.report.words import NOTHING
from paceline.dataset.run_log import read_log
from paceline.evaluate.result import DRAFTER, Evaluation

CHOICES = ("on_task", "foreign")  # what is judged unless --choices says otherwise
SUFFIX = "suffix"


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


def cells(report: Evaluation) -> Iterator[str]:
    """Yield for each set AL and speed of the drafter, and its speed ÷ that of suffix look-ups."""
    for result in report.results:
        acceptance, speed = result.acceptance[DRAFTER], report.speed_of(result, DRAFTER)
        beside = report.speed_of(result, SUFFIX)
        assert speed is not None and beside is not None
        yield between(acceptance.al, acceptance.al_interval)
        yield between(speed.speedup, speed.speedup_interval)
        known = speed.speedup is not None and beside.speedup is not None
        yield f"{speed.speedup / beside.speedup:.2f}" if known else NOTHING


def suffix_cells(reports: Sequence[Evaluation]) -> Iterator[str]:
    """Yield the same of suffix look-ups. They meet the same texts in every report, so their AL is
    that of the first."""
    for number, result in enumerate(reports[0].results):
        sides = [report.speed_of(report.results[number], SUFFIX) for report in reports]
        speeds = [side.speedup for side in sides if side is not None and side.speedup is not None]
        acceptance = result.acceptance[SUFFIX]
        yield between(acceptance.al, acceptance.al_interval)
        arms = f"{statistics.median(speeds):.2f} ({min(speeds):.2f} to {max(speeds):.2f} by arm)"
        yield arms if speeds else NOTHING
        yield "1"


def between(middle: float | None, interval: Sequence[float] | None) -> str:
    """Return a number with its interval, which a few prompts do not have."""
    if middle is None:
        return NOTHING
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
    rows: list[tuple[str, ...]] = []
    reports = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.out or Path(scratch)
        for name, own in args.arms:
            run = folder / re.sub(r"\W+", "-", name)  # the drafter's name is read as a spec
            if not (run / "report.json").exists():
                train(args, run, own)
                evaluate(args, run)
            reports.append(Evaluation.read_file(run / "report.json", "report"))
            steps, slots, rate = learnt(run)
            rows.append((name, str(steps), f"{slots:.0f}", f"{rate:.0f}", *cells(reports[-1])))
            print(*rows[-1], sep=", ", flush=True)
    rows.append((f"`{SUFFIX}`, warmed", "", "", "", *suffix_cells(reports)))
    measures = ("AL", "speed ÷ AR", "speed ÷ suffix")
    parts = [f"{what}, {part}" for part in args.choices for what in measures]
    header = ("arm", "steps", "slots", "slots/s at the end", *parts)
    time = [] if "--steps" in args.options else [f"{args.minutes:g} minutes each"]
    training = ", ".join([*time, *([shlex.join(args.options)] if args.options else [])])
    prompts = f"{args.prompts} prompts of {args.tokens} tokens at T=0"
    table(f"{Path(args.set).name}: {training}; {prompts} ({machine()})", header, rows)


if __name__ == "__main__":
    main()
