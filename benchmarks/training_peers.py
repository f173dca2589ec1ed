"""Measure training a drafter beside the trainer of `speculators`, in turns.

    python benchmarks/training_peers.py MODEL SET --speculators PYTHON [--rounds 5 --steps 4]
    python benchmarks/training_peers.py MODEL SET --speculators PYTHON --losses 40

SET is a folder of `paceline synth`, PYTHON the interpreter of an environment with `speculators`.
Both sides train the same DFlash drafter on D-PACE's cross entropy, on the same texts with as many
blocks, with the target's features in memory. `slots/s` counts the tokens that are learnt, a token
once for every block that it stands in. One side of ours learns the text's tokens, as Paceline does
by default, another what `speculators` learns, the target's most likely tokens: `speculators`
computes them in each step, Paceline keeps them with the features. Muon of torch, which
`speculators` uses, computes in bfloat16, which a CPU without its instructions emulates: there
`--optimizer adamw` is fair.

With `--losses` both begin from the same weights, and take that many steps on the same blocks of the
same texts, with the same labels, optimiser settings and learning rates. The cross entropy of a slot
is printed for both by the slots that they have learnt, and then what our evaluation says of both.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import Worker, machine, table
from safetensors.torch import load_file, save_file
from training import BASE

from paceline.bench.turns import in_turns, ratio_interval
from paceline.models.any_target import TargetShape
from paceline.models.catalog import pull
from paceline.models.loader import load_model
from paceline.models.networks import build_network
from paceline.training.config import TrainConfig
from paceline.training.optimizers import BETAS
from paceline.training.packs import Pick, Text
from paceline.training.run import computed_in, prepare
from paceline.training.shape import drafter_json
from paceline.training.target import LocalTarget
from paceline.training.trainer import Trainer
from paceline.training.workers import Workers, keep_freed_memory

SIDES: dict[str, dict[str, Any]] = {
    "the same drafter": {"head_tokens": 0},
    "the same, and the target's labels": {"head_tokens": 0, "labels": "target", "soft_tokens": 1},
    "its default head, 16384 tokens": {},
}
# What `speculators` learns, the target's most likely tokens over the whole vocabulary, and how. The
# learning rate rises for longer than usual, since there are few steps.
AS_PEER: dict[str, Any] = {
    "head_tokens": 0, "labels": "target", "soft_tokens": 1, "weight_decay": 0.01, "warmup": 0.2,
    "eval_texts": 32,
}  # fmt: skip
Parts = dict[str, torch.Tensor]
Steps = Sequence[dict[str, float]]


def trainer_of(args: argparse.Namespace, out: Path, **changes: Any) -> Trainer:
    shape = {"layers": args.layers, "block": args.block, "anchors": args.anchors}
    settings = BASE | shape | {"steps": 10_000, "eval_texts": 1, "seed": args.seed} | changes
    config = TrainConfig(
        model=args.model, sets=(args.set,), out=str(out), features_gb=8.0, dtype=args.dtype,
        optimizer=args.optimizer, **settings,
    )  # fmt: skip
    trainer = prepare(config, Workers("cpu"))
    trainer.order._texts = trainer.data.train[: args.batches * config.texts]
    return trainer


def draft_config(trainer: Trainer, model: str) -> dict[str, Any]:
    """Return the config.json of the trainer's drafter."""
    mask = trainer.form.config.mask_token_id
    return dict(drafter_json(trainer.config, TargetShape.of(load_model(model).config), mask))


def peer_target(trainer: Trainer, model: str) -> LocalTarget:
    """Return the target with the layers that `speculators` reads: the drafter's, and the last."""
    loaded = load_model(model)
    network, _ = build_network(loaded, dtype=trainer.config.dtype, device="cpu")
    layers = (*trainer.form.config.target_layer_ids, loaded.config.num_layers - 1)
    return LocalTarget(network, TargetShape.of(loaded.config), layers, budget=8 << 30)


def peer_batch(target: LocalTarget, texts: Sequence[Text], dtype: torch.dtype) -> Parts:
    """Return texts as a batch of `speculators`: `hidden_states` [1, tokens, layers * hidden],
    `verifier_last_hidden_states` [1, tokens, hidden], and ids, positions, texts and what may be
    learnt, [1, tokens] each."""
    width = target.shape.hidden_size
    seen = torch.cat([view.features for view in target.read_all(texts)]).to(dtype)
    lengths = torch.tensor([len(text) for text in texts])
    parts = {
        "hidden_states": seen[:, :-width],
        "verifier_last_hidden_states": seen[:, -width:],
        "input_ids": torch.cat([text.ids for text in texts]),
        "loss_mask": torch.cat([text.said for text in texts]),
        "position_ids": torch.cat([torch.arange(len(text)) for text in texts]),
        "document_ids": torch.arange(len(texts)).repeat_interleave(lengths),
    }
    return {name: part[None].contiguous() for name, part in parts.items()}


def padded(batch: Parts, tokens: int) -> Parts:
    """Return a batch with tokens of no text at its end, as `speculators` fills batches up: the last
    text's blocks may reach behind its end."""
    longer = {}
    for name, part in batch.items():
        filler = torch.full_like(part[:, :1], -1 if name == "document_ids" else 0)
        longer[name] = torch.cat((part, *[filler] * tokens), dim=1)
    return longer


def blocks_of(trainer: Trainer, picks: Sequence[Pick]) -> Parts:
    """Return the blocks of a step: places of the anchors in the batch of its texts, labels of the
    slots, and which of them count."""
    pack = trainer._pack(picks, trainer.form.config.block_size)
    lengths = torch.tensor([len(pick.text) for pick in picks])
    blocks = torch.tensor([len(pick.anchors) for pick in picks])
    starts = (lengths.cumsum(0) - lengths).repeat_interleave(blocks)
    return {"anchors": starts + pack.anchors, "labels": pack.labels, "counts": pack.counts}


def peer_of(args: argparse.Namespace, trainer: Trainer, batches: Path) -> Worker:
    """Start `speculators` on batches, with the settings of our trainer."""
    config = trainer.config
    draft, computed = draft_config(trainer, args.model), computed_in(config)
    optimizer = {
        "optimizer": config.optimizer, "lr": config.lr, "weight_decay": config.weight_decay,
        "muon_lr": config.value("matrix_lr"), "muon_weight_decay": config.weight_decay,
        "muon_adjust_lr_fn": "original",
    }  # fmt: skip
    return Worker(
        "speculators", args.model, python=args.speculators, draft=draft, batches=str(batches),
        anchors=args.anchors * config.texts, dtype=str(computed).removeprefix("torch."),
        optimizer=optimizer, betas=BETAS,
    )  # fmt: skip


def steps_of(trainer: Trainer, steps: int) -> dict[str, float]:
    start = time.perf_counter()
    for _ in range(steps):
        trainer.take_step()
    seconds = time.perf_counter() - start
    numbers = trainer.numbers()
    return {"seconds": seconds, "slots": numbers["slots_per_second"] * seconds}


def rates(turns: list[dict[str, float]]) -> list[float]:
    return [turn["slots"] / turn["seconds"] for turn in turns]


def compare_speed(args: argparse.Namespace, folder: Path) -> None:
    trainers = {name: trainer_of(args, folder / "run", **side) for name, side in SIDES.items()}
    first = next(iter(trainers.values()))
    target, texts, size = peer_target(first, args.model), first.order._texts, first.config.texts
    for index in range(0, len(texts), size):
        batch = peer_batch(target, texts[index : index + size], computed_in(first.config))
        save_file(batch, folder / f"{index:06}.safetensors")
    peer = peer_of(args, first, folder)
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
    header = ("", "slots/s ÷ speculators", "slots a step")
    table(f"{titled(args, first)}, {args.rounds} turns ({machine()})", header, rows)


def losses_of(trainer: Trainer, steps: int) -> list[dict[str, float]]:
    """Take steps; return of each one what `learn` of `speculators_trainer.py` does."""
    taken, before = [], 0.0
    for _ in range(steps):
        trainer.take_step()
        numbers = trainer.numbers()
        slots, before = numbers["slots"] - before, numbers["slots"]
        taken.append(
            {"objective": numbers["objective"], "loss": numbers["loss"], "slots": round(slots)}
        )
    return taken


def held_out_lengths(trainer: Trainer) -> dict[str, float]:
    """Return the acceptance length of the weights as they are, by held-out set."""
    sets = trainer.data.held_out
    packs = {name: list(trainer._evaluation_packs(texts)) for name, texts in sets.items()}
    return {name: score.length for name, score in trainer._scores(packs).items()}


def compare_losses(args: argparse.Namespace, folder: Path) -> None:
    steps = args.losses
    trainer = trainer_of(args, folder / "run", steps=steps, **AS_PEER)
    drafter, weights = trainer.form.drafter, str(folder / "weights")
    save_file(drafter.state_dict(), weights)
    target, computed = peer_target(trainer, args.model), computed_in(trainer.config)
    for index in range(steps):
        picks = trainer.order.step(index)
        batch = peer_batch(target, [pick.text for pick in picks], computed)
        batch = padded(batch, trainer.form.config.block_size) | blocks_of(trainer, picks)
        save_file(batch, folder / f"{index:06}.safetensors")
    peer = peer_of(args, trainer, folder)
    assert peer.ask(op="begin", weights=weights)["tensors"] == len(drafter.state_dict())
    shares = [trainer.schedule.lr_share(step) for step in range(steps)]
    lengths = {"before the first step": held_out_lengths(trainer)}
    theirs = peer.ask(op="learn", shares=shares)["steps"]
    ours = losses_of(trainer, steps)
    lengths["Paceline"] = held_out_lengths(trainer)
    peer.ask(op="end", weights=weights)
    peer.stop()
    drafter.load_state_dict(load_file(weights))
    lengths["speculators"] = held_out_lengths(trainer)
    assert [step["slots"] for step in ours] == [step["slots"] for step in theirs]
    show_losses(f"{titled(args, trainer)} ({machine()})", ours, theirs)
    for side, sets in lengths.items():
        print(side, *(f"{name} {length:.3f}" for name, length in sets.items()), sep="; ")


def show_losses(title: str, ours: Steps, theirs: Steps) -> None:
    rows, learnt = [], 0.0
    shown = {1, 2, 3, len(ours), *range(5, len(ours), 5)}
    for number, (here, there) in enumerate(zip(ours, theirs, strict=True), 1):
        learnt += here["slots"]
        if number in shown:
            numbers = (part[name] for name in ("objective", "loss") for part in (here, there))
            rows.append((number, int(learnt), *(f"{value:.4f}" for value in numbers)))
    sides = ("Paceline", "speculators")
    meanings = ("loss of the step", "cross entropy of a slot")
    header = ("step", "slots", *(f"{name}, {side}" for name in meanings for side in sides))
    table(title, header, rows)
    apart = [abs(b["loss"] / a["loss"] - 1) for a, b in zip(ours, theirs, strict=True)]
    other = sum(step["other_labels"] for step in theirs)
    print(f"\ncross entropies differ by {max(apart):.2%} at most, {sum(apart) / len(apart):.2%} on")
    print(f"average; {other:.0f} of {learnt:.0f} slots have another label in speculators\n")


def titled(args: argparse.Namespace, trainer: Trainer) -> str:
    shape = f"{args.layers} layers, block {args.block}, {args.anchors} blocks of a text"
    computed = computed_in(trainer.config)
    return f"{Path(args.model).name}, {shape}, {args.optimizer}, computed in {computed}"


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
    parser.add_argument("--losses", type=int, help="compare losses, of so many steps, not speed")
    parser.add_argument("--anchors", type=int, default=BASE["anchors"], help="blocks of a text")
    parser.add_argument("--layers", type=int, default=BASE["layers"])
    parser.add_argument("--block", type=int, default=BASE["block"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--optimizer", default="muon", choices=("muon", "adamw"))
    args = parser.parse_args()
    args.model = str(pull(args.model))
    keep_freed_memory()
    compare = compare_losses if args.losses else compare_speed
    with tempfile.TemporaryDirectory() as folder:
        compare(args, Path(folder))


if __name__ == "__main__":
    main()
