"""Measure training a drafter beside the trainer of `speculators`, in turns.

    python benchmarks/training_peers.py MODEL SET --speculators PYTHON [--rounds 5 --steps 4]

SET is a folder of `paceline synth`, PYTHON the interpreter of an environment with `speculators`.
Both sides train the same DFlash drafter on D-PACE's cross entropy, on the same texts with as many
blocks, with the target's features in memory. `slots/s` counts the tokens that are learnt, a token
once for every block that it stands in. Muon of torch, which `speculators` uses, computes in
bfloat16, which a CPU without its instructions emulates: there `--optimizer adamw` is fair.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import Worker, machine, table
from safetensors.torch import save_file
from training import BASE

from paceline.bench.turns import in_turns, ratio_interval
from paceline.models.any_target import TargetShape
from paceline.models.catalog import pull
from paceline.models.loader import load_model
from paceline.models.networks import build_network
from paceline.training.config import TrainConfig
from paceline.training.run import computed_in, prepare
from paceline.training.shape import drafter_json
from paceline.training.target import LocalTarget
from paceline.training.trainer import Trainer
from paceline.training.workers import Workers, keep_freed_memory

HEADS = {"the same drafter": 0, "its default head, 16384 tokens": None}


def trainer_of(args: argparse.Namespace, out: Path, head_tokens: int | None) -> Trainer:
    head = {} if head_tokens is None else {"head_tokens": head_tokens}
    shape = {"layers": args.layers, "block": args.block, "anchors": args.anchors}
    config = TrainConfig(
        model=args.model, sets=(args.set,), out=str(out), steps=10_000, features_gb=8.0,
        dtype=args.dtype, optimizer=args.optimizer, eval_texts=1, **(BASE | shape | head),
    )  # fmt: skip
    trainer = prepare(config, Workers("cpu"))
    trainer.order._texts = trainer.data.train[: args.batches * config.texts]
    return trainer


def draft_config(trainer: Trainer, model: str) -> dict[str, Any]:
    """Return the config.json of the trainer's drafter."""
    mask = trainer.form.config.mask_token_id
    return dict(drafter_json(trainer.config, TargetShape.of(load_model(model).config), mask))


def peer_batches(trainer: Trainer, model: str, dtype: torch.dtype, folder: Path) -> None:
    """Write the trainer's texts as batches of `speculators`, as many texts in each as in a step of
    ours: `hidden_states` [1, tokens, layers * hidden], `verifier_last_hidden_states` [1, tokens,
    hidden], and ids, positions, texts and what may be learnt, [1, tokens] each."""
    loaded = load_model(model)
    network, _ = build_network(loaded, dtype=trainer.config.dtype, device="cpu")
    taps = trainer.form.config.target_layer_ids
    layers = (*taps, loaded.config.num_layers - 1)
    target = LocalTarget(network, TargetShape.of(loaded.config), layers, budget=0)
    width, texts = loaded.config.hidden_size, trainer.order._texts
    for index in range(0, len(texts), trainer.config.texts):
        some = texts[index : index + trainer.config.texts]
        lengths = torch.tensor([len(text) for text in some])
        seen = torch.cat([view.features for view in target.read_all(some)]).to(dtype)
        parts = {
            "hidden_states": seen[:, :-width],
            "verifier_last_hidden_states": seen[:, -width:],
            "input_ids": torch.cat([text.ids for text in some]),
            "loss_mask": torch.cat([text.said for text in some]),
            "position_ids": torch.cat([torch.arange(len(text)) for text in some]),
            "document_ids": torch.arange(len(some)).repeat_interleave(lengths),
        }
        batch = {name: part[None].contiguous() for name, part in parts.items()}
        save_file(batch, folder / f"{index:06}.safetensors")


def steps_of(trainer: Trainer, steps: int) -> dict[str, float]:
    start = time.perf_counter()
    for _ in range(steps):
        trainer.take_step()
    seconds = time.perf_counter() - start
    numbers = trainer.numbers()
    return {"seconds": seconds, "slots": numbers["slots_per_second"] * seconds}


def rates(turns: list[dict[str, float]]) -> list[float]:
    return [turn["slots"] / turn["seconds"] for turn in turns]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("set")
    parser.add_argument("--speculators", required=True, help="its Python interpreter")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of a turn")
    parser.add_argument("--batches", type=int, default=8, help="of texts, which are read again")
    parser.add_argument("--anchors", type=int, default=BASE["anchors"], help="blocks of a text")
    parser.add_argument("--layers", type=int, default=BASE["layers"])
    parser.add_argument("--block", type=int, default=BASE["block"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--optimizer", default="muon", choices=("muon", "adamw"))
    args = parser.parse_args()
    args.model = str(pull(args.model))
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        trainers = {name: trainer_of(args, Path(folder, "run"), head)
                    for name, head in HEADS.items()}  # fmt: skip
        first = next(iter(trainers.values()))
        computed = computed_in(first.config)
        batches = Path(folder, "batches")
        batches.mkdir()
        peer_batches(first, args.model, computed, batches)
        draft, texts_of_step = draft_config(first, args.model), first.config.texts
        peer = Worker(
            "speculators", args.model, python=args.speculators, draft=draft, batches=str(batches),
            anchors=args.anchors * texts_of_step, dtype=str(computed).removeprefix("torch."),
            optimizer=args.optimizer,
        )  # fmt: skip
        trained = peer.ask(op="parameters")["trained"]
        ours = sum(part.numel() for part in first.form.drafter.parameters())
        assert trained == ours, f"drafters differ: {trained} weights there, {ours} here"
        sides: dict[str, Callable[[], dict[str, float]]] = {
            f"Paceline, {name}": partial(steps_of, trainer, args.steps)
            for name, trainer in trainers.items()
        }
        sides["speculators"] = partial(peer.ask, op="train", steps=args.steps)
        turns = in_turns(sides, args.rounds, warm_up=-(-args.batches // args.steps))
        peer.stop()
    below = rates(turns["speculators"])
    rows = []
    for name, side in turns.items():
        middle, low, high = ratio_interval(rates(side), below)
        slots = sum(turn["slots"] for turn in side) / len(side) / args.steps
        rows.append((name, f"{middle:.2f} ({low:.2f} to {high:.2f})", f"{slots:.0f}"))
    shape = f"{args.layers} layers, block {args.block}, {args.anchors} blocks of a text"
    how = f"{args.optimizer}, computed in {computed}, {args.rounds} turns"
    title = f"{Path(args.model).name}, {shape}, {how}"
    header = ("", "slots/s ÷ speculators", "slots a step")
    table(f"{title} ({machine()})", header, rows)


if __name__ == "__main__":
    main()
