"""`paceline train`: a drafter for a target, from a set that `paceline synth` wrote."""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import Any, get_args, get_type_hints

from rich.console import Console

from paceline.cli import options
from paceline.core import InvalidRequest
from paceline.training.config import TrainConfig

HELP = {
    "sets": "folders that `paceline synth` wrote",
    "out": "folder of the run; the best drafter is kept in its `drafter`",
    "model": "the target: catalogue name, folder or hub id",
    "held_out": "NAME=FOLDER of a further set to evaluate on, repeatable",
    "out_of_domain": "NAME=FOLDER of a set that must not get worse, repeatable",
    "init": "a drafter to go on from (default: random weights)",
    "generation": "dflash or dflash2 (default: dflash, or what --init is)",
    "layers": "draft layers, 1 to 8 (default 3)",
    "block": "tokens of a block, the anchor included (default 8, or --init's)",
    "taps": "target layers whose outputs the drafter sees (default 5)",
    "window": "tokens of context that a draft sees (default: all)",
    "selector_rank": "numbers per token in each codebook of DFlash 2's selector (default 256)",
    "mask_token": "id of the mask slots' token (default: one that text never holds)",
    "steps": "optimizer steps",
    "epochs": "passes over the texts, in place of --steps",
    "short_block": "tokens of a block in the first part of the run (default: as --block)",
    "short_share": "how large that part is (default 0.6)",
    "texts": "texts of a step",
    "micro": "of them computed at a time",
    "anchors": "at most so many blocks of a text",
    "max_tokens": "longer texts are cut",
    "head_tokens": "the head is cut to so many frequent tokens; 0: the whole head",
    "optimizer": "adamw, or muon for the matrices",
    "lr": "peak learning rate of AdamW",
    "matrix_lr": "peak learning rate of Muon (default 0.02)",
    "weight_decay": "weight decay",
    "warmup": "share of the steps in which the learning rate rises",
    "final_lr": "share of the peak that the learning rate falls to",
    "clip": "largest norm of a gradient",
    "weights": "position weights: dpace, exponential or uniform",
    "mix": "objectives and shares, like ce=0.1,tv=0.9: ce, kl, tv, nla, lk_hybrid",
    "labels": "text, or target: its most likely tokens along the text",
    "soft_tokens": "tokens of its distribution that kl, tv, nla and lk_hybrid see (default 32)",
    "selector_share": "share of the selector's loss (dflash2, default 1)",
    "features_gb": "memory that keeps the target's features, GiB (default 4)",
    "shard_target": "spread the target over all processes (FSDP2), where it fits no single one",
    "dtype": "bfloat16 or float32",
    "device": "cpu or cuda",
    "seed": "decides weights, order and anchors",
    "eval_every": "steps between evaluations",
    "eval_texts": "texts of each set that are evaluated",
    "eval_anchors": "blocks of each such text",
    "save_every": "steps between saves",
    "patience": "evaluations without a better one that end the run; 0: none",
    "regression": "share that AL out of domain may fall by",
    "on_regression": "flag, or stop the run",
    "trackers": "besides log.jsonl: tensorboard, wandb, trackio, mlflow",
    "threads": "threads of the CPU (default: all)",
}


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train a drafter for a target",
        description="Trains a DFlash drafter on what the target said. A run that was interrupted "
        "goes on when the same command is given again.",
    )
    parser.add_argument("sets", nargs="+", metavar="SET", help=HELP["sets"])
    hints = get_type_hints(TrainConfig)
    for field in dataclasses.fields(TrainConfig):
        if field.name == "sets":
            continue
        _add(parser, field, hints[field.name])
    parser.set_defaults(run=run)


def _add(parser: argparse.ArgumentParser, field: Any, hint: Any) -> None:
    name, default = "--" + field.name.replace("_", "-"), _default(field)
    text = HELP[field.name]
    if field.name in ("held_out", "out_of_domain"):
        parser.add_argument(name, action="append", metavar="NAME=FOLDER", help=text)
    elif field.default is False:
        parser.add_argument(name, action="store_true", help=text)
    elif field.name in ("mix", "trackers"):
        shown = "ce=1" if field.name == "mix" else "none"
        parser.add_argument(name, metavar="LIST", help=f"{text} (default: {shown})")
    else:
        kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
        shown = "" if default is None or "default" in text else f" (default: {default})"
        required = field.name == "out"
        parser.add_argument(
            name, type=kinds[0], default=default, required=required, help=text + shown
        )


def _default(field: Any) -> Any:
    if field.name == "model":
        return options.DEFAULTS.model
    return None if field.default is dataclasses.MISSING else field.default


def run(args: argparse.Namespace) -> int:
    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(TrainConfig)}
    values["sets"] = tuple(args.sets)
    for name in ("held_out", "out_of_domain"):
        values[name] = _named(name, values[name] or [])
    values["trackers"] = tuple(filter(None, (values["trackers"] or "").split(",")))
    values["mix"] = _shares(values["mix"] or "ce=1")
    config = TrainConfig(**values)

    from paceline.training.run import train

    console = Console(highlight=False, soft_wrap=True)
    result = train(config, console.print)
    if int(os.environ.get("RANK", "0")) == 0:
        if result.why is not None:
            console.print(result.why, markup=False)
        if result.drafter is not None:
            console.print(f"the best drafter is in {result.drafter}", markup=False)
    return 0 if result.drafter is not None else 1


def _named(field: str, values: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in values:
        name, _, folder = value.partition("=")
        if not (name and folder) or name in found:
            raise InvalidRequest(field, value, "NAME=FOLDER, each name once")
        found[name] = folder
    return found


def _shares(text: str) -> dict[str, float]:
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        shares = {name: float(share) for name, _, share in pairs}
    except ValueError:
        shares = {}
    if len(shares) < len(pairs):
        raise InvalidRequest("mix", text, "objectives with shares, each once, like ce=0.1,tv=0.9")
    return shares
