"""A general drafter for a model in so many minutes of a GPU: answers, training, acceptance.

    python benchmarks/gpu_drafter.py --out FOLDER [--model qwen2.5-coder-1.5b] [--minutes 10]
        [--app apps/general.yaml] [--device cuda]

Three commands, each with its share of the minutes: `paceline synth` begins no new prompt after its
share, and keeps what it has begun; `paceline train` takes all time that is left up to the share of
the evaluation; and `paceline evaluate` measures one set of prompts after another, with a report of
each, until no time is left for the next one. The model is fetched, and the prompts are read once,
before the clock starts. The data packages that an application names must be installed.

With --device cpu the same commands run with small sizes (SCALES): a rehearsal, whose drafter is
worth nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from harness import HERE, machine, table

from paceline.core import InvalidRequest, PacelineError
from paceline.dataset.run_log import read_log
from paceline.dataset.training_set import read_manifest
from paceline.evaluate.result import DRAFTER, AcceptanceNumbers, Evaluation
from paceline.models.catalog import canonical, pull
from paceline.models.networks import check_device
from paceline.synth.app import load_app
from paceline.synth.job import read

GOAL = 4.0  # AL incl. bonus
# Shares of the time; training has the rest. The shipped drafter's first run had a seventh of its
# time for text, and lacked text.
SYNTH, EVALUATE = 0.4, 0.2
LEAST = 0.1  # share of the time with which training is still begun
MINUTES = (1.0, 600.0)
FOREIGN = "foreign"
SETS = {"held out": "{}", FOREIGN: "{}:foreign", "demo": "demo"}  # the most important one first


@dataclass(frozen=True)
class Scale:
    """The options of each command that depend on the device."""

    synth: tuple[str, ...]
    train: tuple[str, ...]
    evaluate: tuple[str, ...]


# On cuda: what the shipped drafter of smollm2-135m was trained with on H200s
# (docs/benchmarks-training.md). `synth` takes as many rows at once as fit there, and half of the
# memory is for features.
SCALES = {
    "cuda": Scale(
        synth=(),
        train=(
            "--texts", "64", "--micro", "32", "--micro-tokens", "24576", "--anchors", "128",
            "--features-gb", "{half}",
        ),
        evaluate=("--prompts", "8", "--tokens", "64"),
    ),
    "cpu": Scale(
        synth=("--rows", "36", "--max-num-seqs", "4"),
        train=(
            "--texts", "4", "--micro", "4", "--micro-tokens", "4096", "--anchors", "8",
            "--eval-every", "10", "--eval-texts", "4", "--features-gb", "1",
        ),
        evaluate=("--prompts", "5", "--tokens", "12"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The minutes of a run, from its `start` on (time.monotonic)."""

    minutes: float
    start: float = field(default_factory=time.monotonic)

    @property
    def gone(self) -> float:
        """Return the minutes since the start."""
        return (time.monotonic() - self.start) / 60

    def took(self, since: float) -> str:
        """Say what a command took that began `since` minutes after the start."""
        return f"{60 * (self.gone - since):.0f} s, {self.gone:.1f} of {self.minutes:g} minutes gone"

    @property
    def synth_hours(self) -> float:
        return SYNTH * self.minutes / 60

    @property
    def train_hours(self) -> float:
        """Return what is left for training. Raises SystemExit where that is next to nothing."""
        minutes = (1 - EVALUATE) * self.minutes - self.gone
        if minutes < LEAST * self.minutes:
            raise SystemExit(
                f"no time is left to train: {self.gone:.1f} of {self.minutes:g} minutes are gone; "
                "expected more --minutes"
            )
        return minutes / 60

    def has_room(self, minutes: float) -> bool:
        return self.gone + minutes <= self.minutes


def main() -> None:
    args = _arguments()
    try:
        check(args)
    except PacelineError as error:
        raise SystemExit(f"gpu_drafter.py: error: {error}") from error
    plan = Plan(args.minutes)
    print(f"{args.model}, {args.minutes:g} minutes, {machine()}")
    if args.device == "cuda":
        print(torch.cuda.get_device_name())
    else:
        print("a rehearsal: sizes are for a CPU, and the drafter is worth nothing")
    make_set(args, plan)
    train(args, plan)
    show(args, plan, evaluate(args, plan))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a new folder for all of it")
    parser.add_argument("--model", default="qwen2.5-coder-1.5b", help="the target")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--app", type=Path, default=HERE.parent / "apps" / "general.yaml")
    parser.add_argument("--device", choices=tuple(SCALES), default="cuda")
    return parser.parse_args()


def check(args: argparse.Namespace) -> None:
    """Refuse bad input by name, and fetch the model, before the clock starts. Raises
    PacelineError."""
    least, most = MINUTES
    if not least <= args.minutes <= most:  # NaN is not
        raise InvalidRequest("minutes", args.minutes, f"a number from {least:g} to {most:g}")
    if args.out.exists() and any(args.out.iterdir()):
        raise InvalidRequest("out", str(args.out), "a new or empty folder")
    canonical(args.model)
    check_device(args.device)
    read(load_app(args.app))
    pull(args.model)


def synth_words(args: argparse.Namespace, hours: float) -> list[str]:
    return [
        str(args.app), "--model", args.model, "--device", args.device, "--hours", f"{hours:.6f}",
        *SCALES[args.device].synth, "--out", str(args.out / "set"), "--json",
    ]  # fmt: skip


def train_words(args: argparse.Namespace, hours: float) -> list[str]:
    cuda = args.device == "cuda"
    half = torch.cuda.mem_get_info()[1] >> 31 if cuda else 0  # of the GPU's memory, in GiB
    return [
        str(args.out / "set"), "--model", args.model, "--device", args.device, "--hours",
        f"{hours:.6f}", *(option.format(half=half) for option in SCALES[args.device].train),
        "--out", str(args.out / "run"),
    ]  # fmt: skip


def evaluate_words(args: argparse.Namespace, prompts: str, report: Path) -> list[str]:
    return [
        args.model, str(args.out / "run" / "drafter"), prompts, "--device", args.device,
        "--temperatures", "0", *SCALES[args.device].evaluate, "--out", str(report),
    ]  # fmt: skip


def make_set(args: argparse.Namespace, plan: Plan) -> None:
    """Make the training set, and print how fast it was made."""
    begun = plan.gone
    made: dict[str, Any] = json.loads(command("synth", synth_words(args, plan.synth_hours)))
    counts = made["counts"]
    print(
        f"synth: {counts.get('rows', 0)} rows, {counts.get('answer_tokens', 0)} tokens of answers; "
        f"{made['tokens_per_second']:.0f} tokens/s, {made['mean_batch']:.0f} at once in the mean; "
        f"{plan.took(begun)}",
        flush=True,
    )


def train(args: argparse.Namespace, plan: Plan) -> None:
    """Train the drafter, and print how fast that was and where the drafter is."""
    begun = plan.gone
    command("train", train_words(args, plan.train_hours), shown=True)
    rows = read_log(args.out / "run")
    speeds = [row["slots_per_second"] for row in rows if "slots_per_second" in row]
    speed = f"{median(speeds):.0f} slots/s in the median" if speeds else "too short for a rate"
    print(f"train: {rows[-1]['step']} steps, {speed}; {plan.took(begun)}")
    print(f"the best drafter: {args.out / 'run' / 'drafter'}", flush=True)


def evaluate(args: argparse.Namespace, plan: Plan) -> dict[str, AcceptanceNumbers]:
    """Measure the drafter on one set after another, as long as there is time for one more. Return
    its acceptance by set."""
    results: dict[str, AcceptanceNumbers] = {}
    last = 0.0  # minutes that the set before took: the next one takes about as long
    made = read_manifest(args.out / "set").counts
    for name, prompts in SETS.items():
        if name == FOREIGN and not made.get("rows_foreign"):
            print(f"evaluate: the set has no {name} prompts", flush=True)
            continue
        if not plan.has_room(last):
            print(f"evaluate: no time is left for {name}", flush=True)
            continue
        begun, report = plan.gone, args.out / f"{name.replace(' ', '-')}.html"
        words = evaluate_words(args, prompts.format(args.out / "set"), report)
        command("evaluate", words, shown=True, written=report)
        last = plan.gone - begun
        print(f"evaluate, {name}: {plan.took(begun)}", flush=True)
        evaluation = Evaluation.read_file(report.with_suffix(".json"), "report")
        if evaluation.text_is_broken:
            print(f"evaluate, {name}: TEXTS DIFFER from those without drafts", flush=True)
        results[name] = evaluation.results[0].acceptance[DRAFTER]
    return results


def command(
    name: str, words: Sequence[str], shown: bool = False, written: Path | None = None
) -> str:
    """Run a `paceline` command and return what it printed, or let it print where it is `shown`.
    Raises SystemExit where it fails, but not where it has `written` its report all the same."""
    print(f"\n$ paceline {name} {shlex.join(words)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "paceline.cli", name, *words],
        stdout=None if shown else subprocess.PIPE,
        text=True,
    )
    if done.returncode and not (written and written.exists()):
        raise SystemExit(f"{name}: exit code {done.returncode}")
    return done.stdout or ""


def lines_of(results: dict[str, AcceptanceNumbers]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each set, and one for their mean."""
    for name, numbers in results.items():
        yield name, numbers.requests, numbers.rounds, numbers.text, verdict(numbers.al)
    lengths = [numbers.al for numbers in results.values() if numbers.al is not None]
    mean = fmean(lengths) if lengths else None
    yield f"mean of {len(lengths)}", "", "", "–" if mean is None else f"{mean:.2f}", verdict(mean)


def verdict(length: float | None) -> str:
    return "not measured" if length is None else "met" if length >= GOAL else "missed"


def show(args: argparse.Namespace, plan: Plan, results: dict[str, AcceptanceNumbers]) -> None:
    header = ("set", "prompts", "rounds", "AL incl. bonus (95%)", f"goal: {GOAL:g}")
    minutes, seconds = divmod(math.ceil(60 * plan.gone), 60)
    took = f"{minutes}:{seconds:02d} of {args.minutes:g} minutes"
    table(f"{args.model}, {args.device}, T=0: {took}", header, list(lines_of(results)))


if __name__ == "__main__":
    main()
