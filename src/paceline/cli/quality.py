"""`paceline quality`: what quantising costs a model, on the shipped text or on yours."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from paceline.cli import options
from paceline.core import InvalidRequest
from paceline.engine.config import EngineConfig


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "quality",
        help="measure what quantising costs a model",
        description="Compare a quantised model with the same model unquantised, on real text: "
        "perplexity, and the share of positions with the same most likely token.",
    )
    options.add_model_argument(parser)
    options.add_network_options(parser, quantize="int8")
    parser.add_argument(
        "--text",
        action="append",
        metavar="FILE",
        help="text to measure on, repeatable (default: the shipped prose and code)",
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    config = options.read_options(args, EngineConfig, model=args.model)
    texts = [_text(name) for name in args.text] if args.text else None

    from paceline.engine.quality import examine

    quality = examine(config, texts)
    if args.json:
        print(json.dumps(dataclasses.asdict(quality)))
    else:
        print(f"{args.quantize}: {quality.describe(args.dtype)} over {quality.tokens} tokens")
    return 0


def _text(name: str) -> str:
    try:
        return Path(name).expanduser().read_text("utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequest("text", name, f"a readable text file ({error})") from error
