"""What training a drafter costs, by phase, and what each lever does to it.

    python benchmarks/training.py MODEL SET [--steps 6] [--device cpu] [--only block,layers]

SET is a folder of `paceline synth`. Every row trains a new drafter for a few steps and changes one
thing against the first row. Shares are of the machine's matmul peak, measured in the same process;
`slots/s` counts the tokens that are learnt, a token once for every block that it stands in.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from harness import machine, table

from paceline.dataset.run_log import PHASES
from paceline.training.config import TrainConfig
from paceline.training.run import computed_in, prepare
from paceline.training.trainer import Trainer
from paceline.training.workers import Workers, keep_freed_memory

BASE: dict[str, Any] = {"layers": 3, "block": 8, "anchors": 32, "texts": 8, "micro": 8}
LEVERS: dict[str, list[dict[str, Any]]] = {
    "features": [{"features_gb": 0.0}, {"features_gb": 0.0, "features_folder": "features"}],
    "head": [{"head_tokens": 4096}, {"head_tokens": 0}],
    "anchors": [{"anchors": 8}, {"anchors": 128}],
    "layers": [{"layers": 1}, {"layers": 2}, {"layers": 5}],
    "block": [{"block": 4}, {"block": 16}],
    "micro": [{"micro": 1}, {"micro": 2}],
    "optimizer": [{"optimizer": "adamw"}],
    "objective": [{"mix": {"kl": 1.0}}, {"mix": {"lk_hybrid": 1.0}}],
    "generation": [{"generation": "dflash2"}],
    "compile": [{"compile": True}],
}
# The recipe of the shipped drafter, on texts that the target has to read.
SHIPPED: dict[str, Any] = {
    "generation": "dflash2", "selector_rank": 16, "mix": {"ce": 0.5, "kl": 0.5}, "features_gb": 0.0,
}  # fmt: skip
LEVERS["shipped"] = [SHIPPED, SHIPPED | {"anchors": 128}, SHIPPED | {"anchors": 128, "texts": 16}]
GIVEN_BACK = "freed memory given back"


def config_of(args: argparse.Namespace, out: Path, changes: dict[str, Any]) -> TrainConfig:
    settings = {"features_gb": 8.0, **BASE, **changes}
    if "features_folder" in settings:
        settings["features_folder"] = str(out / settings["features_folder"])
    return TrainConfig(
        model=args.model, sets=(args.set,), out=str(out), steps=2 * args.steps, device=args.device,
        dtype=args.dtype, eval_texts=1, **settings,
    )  # fmt: skip


def measure(args: argparse.Namespace, out: Path, changes: dict[str, Any]) -> dict[str, float]:
    """Numbers of `args.steps` steps, after as many over the same texts that are not counted."""
    config = config_of(args, out, changes)
    trainer = prepare(config, Workers(args.device))
    trainer.order._texts = trainer.data.train[: args.steps * config.texts]  # one epoch a pass
    return passes(trainer, args.steps)


def passes(trainer: Trainer, steps: int) -> dict[str, float]:
    for _ in range(steps):
        trainer.take_step()
    trainer.numbers()
    for _ in range(steps):
        trainer.take_step()
    return trainer.numbers()


def row(name: str, numbers: dict[str, float], base: dict[str, float]) -> list[str]:
    whole = sum(numbers[f"ms/{phase}"] for phase in PHASES)
    cells = [
        name,
        f"{numbers['blocks_per_second'] / base['blocks_per_second']:.2f}",
        f"{numbers['slots_per_second']:.0f}",
        f"{1e3 * numbers['seconds_per_step']:.0f}",
    ]
    for phase in PHASES:
        share = numbers.get(f"peak_share/{phase}")
        part = f"{100 * numbers[f'ms/{phase}'] / whole:.0f}%"
        cells.append(part if share is None else f"{part} at {100 * share:.0f}%")
    return [*cells, f"{100 * numbers['peak_share/all']:.0f}%"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("set")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--only", default=",".join(LEVERS), help="levers, by name")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        computed = str(computed_in(config_of(args, Path(folder), {}))).removeprefix("torch.")
        before = measure(args, Path(folder), {})  # training keeps what is freed from its start on
        keep_freed_memory()
        base = measure(args, Path(folder), {})
        rows = [row("as it is", base, base), row(GIVEN_BACK, before, base)]
        for lever in args.only.split(","):
            for changes in LEVERS[lever]:
                name = ", ".join(f"{key} {value}" for key, value in changes.items())
                print(name, flush=True)
                rows.append(row(name, measure(args, Path(folder), changes), base))
    shape = ", ".join(f"{key} {value}" for key, value in BASE.items())
    header = ("", "blocks/s ÷ first row", "slots/s", "ms a step", *PHASES, "all")
    title = f"{Path(args.model).name}, {shape}, computed in {computed}"
    table(f"{title}: share of time, at share of peak, {machine()}", header, rows)


if __name__ == "__main__":
    main()
