"""`paceline pull`: fetch a model ahead of its first use."""

from __future__ import annotations

import argparse
from typing import Any

from paceline.cli import options


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "pull",
        help="fetch a model ahead of its first use",
        description="Fetch a model into the cache and print its folder.",
    )
    options.add_model_argument(parser)
    parser.add_argument("--revision", help="with a hub id: a branch, tag or commit")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from paceline.models.catalog import pull

    print(pull(args.model, revision=args.revision))
    return 0
