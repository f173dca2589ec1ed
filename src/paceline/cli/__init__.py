"""The `paceline` command. Every command parses, calls and prints; the work is done elsewhere."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from paceline.cli import (
    bench,
    chat,
    drafter,
    evaluate,
    explain,
    generate,
    mock,
    predict,
    profile,
    pull,
    quality,
    roofline,
    serve,
    synth,
    train,
    ui,
)
from paceline.core import PacelineError
from paceline.version import __version__

COMMANDS = (
    serve,
    ui,
    generate,
    chat,
    bench,
    explain,
    profile,
    pull,
    quality,
    synth,
    train,
    evaluate,
    drafter,
    predict,
    mock,
    roofline,
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline",
        description="Serve an open-weight language model, losslessly and faster.",
    )
    parser.add_argument("--version", action="version", version=f"paceline {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0 is success, 1 a failed run, 2 an input that was refused, 130 Ctrl-C."""
    try:
        # Inside the try: values that argparse hands to our own types may be refused as well.
        args = build_parser().parse_args(argv)
        return int(args.run(args))
    except PacelineError as error:
        print(f"paceline: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader left (`| head`); nothing more to say to it
        return 0
