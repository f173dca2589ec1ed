"""Objectives of training beside each other: equal time for each, then acceptance length.

    python benchmarks/objectives.py MODEL SET … [--minutes 20] [--device cpu] [--init DRAFTER]
        [--at-once] [--only NAME …] [--round-costs 1.3,1.4,…] [-- OPTION OF `paceline train` …]

Each SET is a folder of `paceline synth` of one temperature, the last one of T = 1. Each arm trains
a drafter on all of them for the same time: from random weights, or going on from DRAFTER, which
then has a row of its own. With --at-once all arms train side by side, so that whatever else the
machine does meets all of them. A fall out of domain keeps no arm from being judged.

Every drafter then drafts along the held-out texts of each set. Its likeliest tokens count where
they are the text's, round after round as in serving. On the last set there is besides an estimate
of what speculative sampling would accept: 1 + the sum of the products of sum(min(p, q)) along the
text, over all anchors; and, with the times of rounds that draft 1, 2, … tokens, which `paceline
drafter costs` prints, of the speedup that this brings where every draft has its best length.
Without --round-costs the arm of expected_speedup is left out. Intervals are the 95% ones of the
ratio to the first arm, by resampling the held-out texts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from harness import machine, table
from numpy.typing import NDArray

from paceline.bench.turns import change_interval
from paceline.drafters.shipped import drafter_folder
from paceline.models.dflash.module import draft_logits
from paceline.training.config import TrainConfig
from paceline.training.data import read_texts
from paceline.training.evaluation import walk
from paceline.training.losses import acceptance, paying
from paceline.training.packs import Pick, Text, make_pack, window_of
from paceline.training.run import prepare
from paceline.training.seen import Soft
from paceline.training.trainer import Trainer
from paceline.training.workers import Workers

Pairs = NDArray[np.float64]
NEW = {
    "ce": (),
    "ce, labels of the target": ("--labels", "target"),
    "kl": ("--mix", "kl=1"),
    "lk_hybrid": ("--mix", "lk_hybrid=1"),
    "expected_al and 0.1 kl": ("--mix", "expected_al=1,kl=0.1"),
    "expected_speedup and 0.1 kl": ("--mix", "expected_speedup=1,kl=0.1"),
    "expected_matches and 0.1 ce": ("--mix", "expected_matches=1,ce=0.1"),
}
GOING_ON = {
    "ce": (),
    "kl": ("--mix", "kl=1"),
    "expected_al": ("--mix", "expected_al=1"),
    "expected_speedup": ("--mix", "expected_speedup=1"),
    "expected_matches": ("--mix", "expected_matches=1"),
    "on_policy": ("--mix", "on_policy=1"),
}
PRICINGS = 8  # after which a speedup no longer changes
SOFT_TOKENS, ANCHORS, LONGEST = 128, 64, 2048
BEFORE = "before"
NONE_BETTER = "no evaluation was better"  # than the drafter that a run went on from


@dataclass
class Found:
    """Counts of a drafter on the held-out texts of a set, one of each text: the `tokens` of
    `rounds` that draft its likeliest tokens, and the sum of the lengths that `sampled` drafts at so
    many `anchors` would have; and the chances `reach` [anchors, slots] that they get so far."""

    tokens: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    sampled: list[float] = field(default_factory=list)
    anchors: list[float] = field(default_factory=list)
    reach: list[torch.Tensor] = field(default_factory=list)

    @property
    def likeliest_pairs(self) -> Pairs:
        return np.stack([self.tokens, self.rounds], axis=1)

    @property
    def sampled_pairs(self) -> Pairs:
        return np.stack([self.sampled, self.anchors], axis=1)

    def speed_pairs(self, round_costs: Sequence[float]) -> Pairs:
        """The tokens of each text, and their time, with the lengths that are fastest over all."""
        speedup, whole = 1.0, torch.cat(self.reach)
        for _ in range(PRICINGS):
            tokens, cost = paying(whole, round_costs, speedup)[1].tolist()
            speedup = tokens / cost
        return np.stack([paying(part, round_costs, speedup)[1].numpy() for part in self.reach])


def train_arms(args: argparse.Namespace, folder: Path, arms: dict[str, Sequence[str]]) -> None:
    """Train every arm into a folder of its own; raises SystemExit where one fails."""
    running = []
    for number, (name, options) in enumerate(arms.items()):
        command = [
            sys.executable, "-m", "paceline.cli", "train", *args.sets, "--model", args.model,
            "--out", str(folder / str(number)), "--hours", f"{args.minutes / 60:.6f}",
            "--device", args.device, *options, *args.options,
        ]  # fmt: skip
        if args.init:
            command += ["--init", args.init, "--regression", "1"]
        with (folder / f"{number}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        running.append((name, number, process))
        if not args.at_once:
            process.wait()
    for name, number, process in running:
        failed, said = process.wait(), (folder / f"{number}.log").read_text()[-2000:]
        if failed and not (args.init and NONE_BETTER in said):
            raise SystemExit(f"{name}: exit code {process.returncode}\n{said}")


def held_out(args: argparse.Namespace) -> dict[str, list[Text]]:
    """The held-out texts by the name of their set."""
    return {Path(folder).name: read_texts([Path(folder)], "held_out", LONGEST)
            for folder in args.sets}  # fmt: skip


@torch.no_grad()
def judge(
    args: argparse.Namespace, drafter: Path, texts: dict[str, list[Text]]
) -> dict[str, Found]:
    """Draft along the texts."""
    config = TrainConfig(
        model=args.model, sets=tuple(args.sets), out=str(drafter / "none"), init=str(drafter),
        steps=1, device=args.device, mix={"kl": 1.0}, soft_tokens=SOFT_TOKENS, head_tokens=1,
        features_gb=0.0,
    )  # fmt: skip
    trainer = prepare(config, Workers(args.device))
    trainer.form.eval()
    results = {}
    for name, group in texts.items():
        results[name] = found = Found()
        for start in range(0, len(group), 16):
            _add(found, trainer, group[start : start + 16])
    trainer.target.close()
    return results


def _add(found: Found, trainer: Trainer, texts: Sequence[Text]) -> None:
    form, target = trainer.form, trainer.target
    size, mask = form.config.block_size, form.config.mask_token_id
    picks = [Pick(text, window_of(text, ANCHORS, size)) for text in texts]
    seen = target.read_all(texts)
    pack = make_pack(picks, seen, size, mask, target.window).to(trainer.workers.device)
    parts = [view.behind(pick.anchors, size - 1) for pick, view in zip(picks, seen, strict=True)]
    likely, shares = (torch.cat(part).to(pack.labels.device) for part in zip(*parts, strict=True))
    soft = Soft(form.head.row_of[likely], shares)
    accepted = form.right(pack).cumprod(1).sum(1).cpu()
    chances = _chances(trainer, form.hidden(pack), soft) * pack.counts
    reach = chances.cumprod(1).cpu()
    lengths = 1 + reach.sum(1)
    for first, last in pack.blocks:
        visited = walk(accepted[first:last])
        found.rounds.append(len(visited))
        found.tokens.append(float((1 + accepted[first:last][visited]).sum()))
        found.sampled.append(float(lengths[first:last].sum()))
        found.anchors.append(last - first)
        found.reach.append(reach[first:last])


def _chances(trainer: Trainer, hidden: torch.Tensor, soft: Soft) -> torch.Tensor:
    head, found = trainer.form.head, []
    for start in range(0, len(hidden), 128):
        part = slice(start, start + 128)
        logits = draft_logits(head.config, hidden[part].to(head.weight.dtype), head.weight)
        log_q = torch.log_softmax(logits.float(), -1)
        found.append(acceptance(log_q, Soft(soft.rows[part], soft.probabilities[part])))
    return torch.cat(found)


def compared(own: Pairs, first: Pairs) -> str:
    """A pooled mean, and the interval of its ratio to that of the first arm on the same texts.
    Both are [texts, 2]: what stands above, and what stands below."""
    above, below = own.sum(0)
    low, high = change_interval(first, own) or (float("nan"), float("nan"))
    return f"{above / below:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--minutes", type=float, default=20, help="of each arm")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--init", help="a drafter to go on from; else random weights")
    parser.add_argument("--at-once", action="store_true", help="train all arms side by side")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="arms; default: all")
    parser.add_argument("--out", type=Path, help="keep the runs in this folder")
    parser.add_argument("--round-costs", type=_numbers, default=(), help="as `paceline train`'s")
    argv, options = sys.argv[1:], []
    if "--" in argv:
        argv, options = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    args = parser.parse_args(argv)
    args.options = options
    arms: dict[str, Sequence[str]] = dict(GOING_ON if args.init else NEW)
    for name in [name for name in arms if name.startswith("expected_speedup")]:
        costs = ",".join(map(str, args.round_costs))
        if costs:
            arms[name] = (*arms[name], "--round-costs", costs)
        else:
            del arms[name]
    if unknown := set(args.only or ()) - arms.keys():
        parser.error(f"--only {', '.join(unknown)}: expected one of {', '.join(arms)}")
    if args.only:
        arms = {name: arms[name] for name in args.only}
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        train_arms(args, folder, arms)
        texts = held_out(args)
        results = {}
        for number, name in enumerate(arms):
            drafter = folder / str(number) / "drafter"
            if not drafter.exists():
                print(f"{name}: no evaluation was better than before, so the drafter stays")
                drafter = drafter_folder(args.init)
            results[name] = judge(args, drafter, texts)
        steps = {name: last_step(folder / str(number)) for number, name in enumerate(arms)}
        if args.init:
            results[BEFORE] = judge(args, drafter_folder(args.init), texts)
            steps[BEFORE] = 0, 0.0
    show(args, texts, results, steps)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def last_step(run: Path) -> tuple[int, float]:
    """The steps of a run, and the slots that it learnt a second at its end."""
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    rates = [row["slots_per_second"] for row in rows if "slots_per_second" in row]
    return max(row["step"] for row in rows), rates[-1]


def show(
    args: argparse.Namespace,
    texts: dict[str, list[Text]],
    results: dict[str, dict[str, Found]],
    steps: dict[str, tuple[int, float]],
) -> None:
    base, last = next(iter(results.values())), next(reversed(texts))
    rows = []
    for name, found in results.items():
        cells = [name, str(steps[name][0]), f"{steps[name][1]:.0f}"]
        for part, own in found.items():
            first = base[part]
            cells.append(compared(own.likeliest_pairs, first.likeliest_pairs))
        own, first = found[last], base[last]
        cells.append(compared(own.sampled_pairs, first.sampled_pairs))
        if args.round_costs:
            speeds = own.speed_pairs(args.round_costs), first.speed_pairs(args.round_costs)
            cells.append(compared(*speeds))
        rows.append(cells)
    start = f"from {args.init}" if args.init else "from random weights"
    counts = ", ".join(f"{len(group)} of {name}" for name, group in texts.items())
    device = torch.cuda.get_device_name() if args.device == "cuda" else machine()
    header = ["objective", "steps", "slots/s", *(f"AL, {name} (÷ the first)" for name in texts)]
    header.append(f"AL of sampled drafts, {last} (÷ the first)")
    if args.round_costs:
        header.append(f"their speedup, {last} (÷ the first)")
    table(f"{args.minutes:g} minutes {start}; held-out texts: {counts} ({device})", header, rows)


if __name__ == "__main__":
    main()
