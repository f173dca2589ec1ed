"""How a drafter got better: acceptance length against the hours and tokens of its training.

    python benchmarks/curves.py RUN [RUN ...] [--svg FILE]

RUN is a folder of `paceline train`; of several, each goes on from the one before. Acceptance
lengths are the run's own, along texts that it does not learn from. A machine that was needed for
something else pauses a run: where steps took more than three times the median, the median counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from harness import machine, table

from paceline.bench.report.charts import Labels, lines
from paceline.dataset.run_log import read_log

PAUSE = 3
SUFFIX = "/al"
KINDS = ("held_out", "foreign", "out_of_domain")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """After so many steps, hours and learnt tokens: acceptance length by set."""

    step: int
    hours: float
    tokens: float
    lengths: dict[str, float]


def evaluations(runs: Sequence[str]) -> Iterator[Evaluation]:
    steps = 0
    hours = tokens = 0.0
    for number, run in enumerate(runs):
        rows = read_log(Path(run))
        usual = median(row["seconds_per_step"] for row in rows if "seconds_per_step" in row)
        last = before = 0
        for row in rows:
            if "seconds_per_step" in row:
                taken, seconds = row["step"] - last, row["seconds_per_step"]
                hours += taken * (seconds if seconds < PAUSE * usual else usual) / 3600
                tokens += row["slots"] - before
                last, before = row["step"], row["slots"]
            found = {k.removesuffix(SUFFIX): v for k, v in row.items() if k.endswith(SUFFIX)}
            found = {k: v for k, v in found.items() if k.startswith(KINDS)}
            if found and (row["step"] or not number):
                yield Evaluation(steps + row["step"], hours, tokens, found)
        steps += last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--svg", type=Path)
    args = parser.parse_args()
    points = list(evaluations(args.runs))
    names = [n for n in points[0].lengths if all(n in p.lengths for p in points)]
    rows = [
        (p.step, f"{p.hours:.2f}", f"{p.tokens / 1e6:.2f}", *(f"{p.lengths[n]:.2f}" for n in names))
        for p in points
    ]
    title = f"{', '.join(Path(run).name for run in args.runs)}: {machine()}"
    table(title, ("step", "hours", "M tokens learnt", *names), rows)
    if args.svg is not None:
        kinds = {kind: [n for n in names if n.startswith(f"{kind}/")] for kind in KINDS}
        series = {
            f"{kind}, mean of {len(of)}": [
                (p.hours, mean(p.lengths[n] for n in of)) for p in points
            ]
            for kind, of in kinds.items()
            if of
        }
        y_label = "AL incl. bonus, by the texts themselves"
        labels = Labels("Acceptance length in training", "hours", y_label)
        args.svg.write_text(lines(series, labels), "utf-8")


if __name__ == "__main__":
    main()
