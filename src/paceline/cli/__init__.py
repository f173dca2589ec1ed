"""The `paceline` command. Every command parses, calls and prints; the work is done elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from paceline.cli.bench import BenchCommand
from paceline.cli.chat import ChatCommand
from paceline.cli.drafter import ConvertCommand, DoctorCommand, InspectCommand
from paceline.cli.evaluate import EvaluateCommand
from paceline.cli.explain import ExplainCommand
from paceline.cli.generate import GenerateCommand
from paceline.cli.mock import MockCommand
from paceline.cli.model import PullCommand, QualityCommand
from paceline.cli.options import Command, add_command, read_options, run_command
from paceline.cli.predict import PredictCommand
from paceline.cli.profile import ProfileCommand
from paceline.cli.roofline import FitCommand, MeasureCommand
from paceline.cli.serve import ServeCommand, UiCommand
from paceline.cli.synth import SynthCommand
from paceline.cli.train import TrainCommand
from paceline.version import __version__

COMMANDS: dict[str, type[Command]] = {
    "serve": ServeCommand,
    "ui": UiCommand,
    "generate": GenerateCommand,
    "chat": ChatCommand,
    "bench": BenchCommand,
    "explain": ExplainCommand,
    "profile": ProfileCommand,
    "pull": PullCommand,
    "quality": QualityCommand,
    "synth": SynthCommand,
    "train": TrainCommand,
    "evaluate": EvaluateCommand,
    "predict": PredictCommand,
    "mock": MockCommand,
}
# commands that have jobs below them, and what they do
JOBS: dict[str, tuple[str, dict[str, type[Command]]]] = {
    "drafter": (
        "inspect, examine or convert a DFlash drafter: a folder or hub id, z-lab's or speculators'",
        {"inspect": InspectCommand, "doctor": DoctorCommand, "convert": ConvertCommand},
    ),
    "roofline": (
        "calibrate predictions to your engine with measured steps",
        {"fit": FitCommand, "measure": MeasureCommand},
    ),
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline", description="Serve an open-weight language model, losslessly and faster."
    )
    parser.add_argument("--version", action="version", version=f"paceline {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, kind in COMMANDS.items():
        add_command(commands, name, kind)
    for name, (text, kinds) in JOBS.items():
        jobs = commands.add_parser(name, help=text, description=text).add_subparsers(
            title="jobs", metavar="JOB", required=True
        )
        for job, kind in kinds.items():
            add_command(jobs, job, kind)
    return parser


def parse(argv: Sequence[str] | None = None) -> Command:
    """Return the command that the arguments state. Raises InvalidRequest, naming the option."""
    args = build_parser().parse_args(argv)
    kind: type[Command] = args.kind
    return read_options(args, kind)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code."""
    return run_command("paceline", lambda: parse(argv))
