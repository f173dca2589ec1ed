"""`paceline train`: train a drafter for a target, from a set that `paceline synth` wrote."""

from __future__ import annotations

import argparse
import os
from typing import Any

from rich.console import Console

from paceline.cli import options
from paceline.cli.field_options import add_field_option, help_of
from paceline.core import InvalidRequest
from paceline.core.field_types import fields_of
from paceline.training.config import TrainConfig

# Options that are written in another way than their field is.
WRITTEN: dict[str, dict[str, Any]] = {
    "model": {
        "default": options.DEFAULTS.model,
        "required": False,
        "help": f"{fields_of(TrainConfig)['model'].description} (default: %(default)s)",
    },
    "held_out": {"action": "append", "metavar": "NAME=FOLDER", "default": None},
    "out_of_domain": {"action": "append", "metavar": "NAME=FOLDER", "default": None},
    "mix": {"metavar": "LIST", "default": None, "type": str},
    "trackers": {"metavar": "LIST", "default": None},
}


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train a drafter for a target",
        description="Trains a DFlash drafter on what the target said. A run that was interrupted "
        "goes on when the same command is given again.",
    )
    fields = fields_of(TrainConfig)
    parser.add_argument("sets", nargs="+", metavar="SET", help=help_of(fields["sets"]))
    for name in fields:
        if name != "sets":
            add_field_option(parser, TrainConfig, name, **WRITTEN.get(name, {}))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    values = {name: getattr(args, name) for name in fields_of(TrainConfig)}
    for name in ("held_out", "out_of_domain"):
        values[name] = _named_folders(name, values[name] or [])
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


def _named_folders(field: str, values: list[str]) -> dict[str, str]:
    folders: dict[str, str] = {}
    for value in values:
        name, _, folder = value.partition("=")
        if not (name and folder) or name in folders:
            raise InvalidRequest(field, value, "NAME=FOLDER, each name once")
        folders[name] = folder
    return folders


def _shares(text: str) -> dict[str, float]:
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        shares = {name: float(share) for name, _, share in pairs}
    except ValueError:
        shares = {}
    if len(shares) < len(pairs):
        raise InvalidRequest("mix", text, "objectives with shares, each once, like ce=0.1,tv=0.9")
    return shares
