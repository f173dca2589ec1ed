# PYTHON_ARGCOMPLETE_OK: completion in shells may ask this program
"""The `paceline` command. Every command parses, calls and prints; the work is done elsewhere."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import argcomplete

from paceline.cli.audit import AuditCommand
from paceline.cli.autospec import SimulateCommand
from paceline.cli.autospec_run import AutospecRunCommand
from paceline.cli.autospec_score import ScoreCommand
from paceline.cli.autospec_show import AutospecExplainCommand, AutospecStatusCommand
from paceline.cli.bench import BenchCommand
from paceline.cli.catalogue import ListCommand, RemoveCommand, ShowCommand
from paceline.cli.chat import ChatCommand
from paceline.cli.config import add_configured, name_of
from paceline.cli.corpus import CorpusBuildCommand, CorpusMergeCommand, CorpusShowCommand
from paceline.cli.distil import DistilCommand
from paceline.cli.doctor import ServedDoctorCommand
from paceline.cli.drafter import ConvertCommand, DoctorCommand, InspectCommand
from paceline.cli.drafter_costs import CostsCommand
from paceline.cli.drafter_find import FindCommand
from paceline.cli.drafter_push import PushCommand
from paceline.cli.drafters import (
    DraftersAddCommand,
    DraftersDiffCommand,
    DraftersHistoryCommand,
    DraftersListCommand,
    DraftersPromoteCommand,
    DraftersRetireCommand,
    DraftersRollbackCommand,
    DraftersShowCommand,
)
from paceline.cli.endpoint import (
    EndpointDownCommand,
    EndpointStatusCommand,
    EndpointUpCommand,
)
from paceline.cli.engine import MetricsCommand, StatusCommand, UpCommand
from paceline.cli.evaluate import EvaluateCommand
from paceline.cli.explain import ExplainCommand
from paceline.cli.generate import GenerateCommand
from paceline.cli.help import Formatter, Parser, epilog, overview
from paceline.cli.mock import MockCommand
from paceline.cli.model import PullCommand, QualityCommand
from paceline.cli.options import (
    Command,
    absent_inputs,
    add_command,
    offered_options,
    read_options,
    run_command,
    summary,
)
from paceline.cli.predict import PredictCommand
from paceline.cli.profile import ProfileCommand
from paceline.cli.roofline import FitCommand, MeasureCommand
from paceline.cli.serve import ServeCommand, UiCommand
from paceline.cli.synth import SynthCommand
from paceline.cli.traces import PurgeCommand, TracesCommand, TraceSetCommand
from paceline.cli.train import TrainCommand
from paceline.cli.tune import TuneCommand
from paceline.cli.watch import WatchCommand
from paceline.core import InvalidRequest
from paceline.core.errors import together
from paceline.version import __version__

COMMANDS: dict[str, type[Command]] = {
    "serve": ServeCommand,
    "ui": UiCommand,
    "generate": GenerateCommand,
    "chat": ChatCommand,
    "bench": BenchCommand,
    "audit": AuditCommand,
    "explain": ExplainCommand,
    "profile": ProfileCommand,
    "list": ListCommand,
    "pull": PullCommand,
    "show": ShowCommand,
    "rm": RemoveCommand,
    "quality": QualityCommand,
    "synth": SynthCommand,
    "train": TrainCommand,
    "distil": DistilCommand,
    "evaluate": EvaluateCommand,
    "doctor": ServedDoctorCommand,
    "predict": PredictCommand,
    "mock": MockCommand,
    "tune": TuneCommand,
}
# commands that have jobs below them, and what they do
JOBS: dict[str, tuple[str, dict[str, type[Command]]]] = {
    "autospec": (
        "keep drafters good while traffic changes (run), say where cohorts stand (status) and what "
        "was decided and why (explain), try the policy on simulated traffic (simulate), score "
        "drafters on captured answers (score)",
        {
            "run": AutospecRunCommand,
            "status": AutospecStatusCommand,
            "explain": AutospecExplainCommand,
            "simulate": SimulateCommand,
            "score": ScoreCommand,
        },
    ),
    "corpus": (
        "build what look-ups draft from out of a model's answers, merge that of replicas, show it",
        {"build": CorpusBuildCommand, "merge": CorpusMergeCommand, "show": CorpusShowCommand},
    ),
    "drafter": (
        "find the drafters for a model; inspect, check (doctor) or convert a DFlash drafter: a "
        "folder or hub id, in z-lab's or speculators' format; print what its drafts cost; watch a "
        "run that trains one, and push it to the hub",
        {
            "find": FindCommand,
            "inspect": InspectCommand,
            "doctor": DoctorCommand,
            "convert": ConvertCommand,
            "costs": CostsCommand,
            "watch": WatchCommand,
            "push": PushCommand,
        },
    ),
    "drafters": (
        "list the versions of drafters in a store, show, add, promote, retire, roll back and "
        "compare them, and print their history",
        {
            "list": DraftersListCommand,
            "show": DraftersShowCommand,
            "add": DraftersAddCommand,
            "promote": DraftersPromoteCommand,
            "retire": DraftersRetireCommand,
            "rollback": DraftersRollbackCommand,
            "diff": DraftersDiffCommand,
            "history": DraftersHistoryCommand,
        },
    ),
    "endpoint": (
        "start replicas of an engine behind Envoy (up), whose drafters can then be replaced; say "
        "who gets which (status), end them (down)",
        {"up": EndpointUpCommand, "status": EndpointStatusCommand, "down": EndpointDownCommand},
    ),
    "engine": (
        "start vLLM, SGLang or Paceline with a drafter (up), say what runs (status), read its "
        "metrics",
        {"up": UpCommand, "status": StatusCommand, "metrics": MetricsCommand},
    ),
    "roofline": (
        "calibrate predictions to your engine with measured steps",
        {"fit": FitCommand, "measure": MeasureCommand},
    ),
    "traces": (
        "show what `serve --traces` captured: acceptance and speed by cohort and day, or by SQL "
        "(show); delete from it (purge); make a training set of it (set)",
        {"show": TracesCommand, "purge": PurgeCommand, "set": TraceSetCommand},
    ),
}
# the job that is meant where a value stands in its place: `paceline traces FOLDER`
USUAL_JOBS = {"traces": "show"}


def build_parser() -> Parser:
    summaries = {name: summary(kind) for name, kind in COMMANDS.items()}
    summaries |= {name: text for name, (text, _) in JOBS.items()}
    parser = Parser(
        prog="paceline",
        usage="paceline COMMAND [options]",
        description="Serve an open-weight language model, losslessly and faster.",
        epilog=overview(summaries),
        formatter_class=Formatter,
    )
    parser.add_argument("--version", action="version", version=f"paceline {__version__}")
    commands = parser.add_subparsers(
        metavar="COMMAND", required=True, help=argparse.SUPPRESS, prog=parser.prog
    )
    for name, kind in COMMANDS.items():
        add_command(commands, name, kind)
    for name, (text, kinds) in JOBS.items():
        usage = f"{parser.prog} {name} JOB [options]"
        place = commands.add_parser(name, description=text, usage=usage, epilog=epilog(name))
        jobs = place.add_subparsers(title="jobs", metavar="JOB", required=True, prog=place.prog)
        for job, kind in kinds.items():
            add_command(jobs, job, kind, name)
    return parser


def parse(argv: Sequence[str] | None = None, *, find_inputs: bool = False) -> Command:
    """Return the command that the arguments state. Raises InvalidRequest, naming the option; it
    also names the inputs that are not there, which with `find_inputs` are an error by themselves.
    """
    parser = build_parser()
    argcomplete.autocomplete(parser)
    args = parser.parse_args(with_job(sys.argv[1:] if argv is None else argv))
    kind: type[Command] = args.kind
    names = [*COMMANDS, *(f"{name} {job}" for name, (_, jobs) in JOBS.items() for job in jobs)]
    add_configured(args, kind, all_options(), names)
    try:
        command = read_options(args, kind)
    except InvalidRequest as error:
        raise together([*absent_inputs(args, kind), error]) from None
    if find_inputs and (absent := absent_inputs(args, kind)):
        raise together(absent)
    return command


def with_job(argv: Sequence[str]) -> Sequence[str]:
    """Return arguments with the usual job of a command that has jobs, where they name none."""
    job = USUAL_JOBS.get(argv[0]) if len(argv) > 1 else None
    if job is None or argv[1] in (*JOBS[argv[0]][1], "-h", "--help"):
        return argv
    return [argv[0], job, *argv[1:]]


def all_options() -> set[str]:
    """Return the names of the options of every command, as `max-model-len`."""
    kinds = [*COMMANDS.values(), *(kind for _, jobs in JOBS.values() for kind in jobs.values())]
    return {name_of(option) for kind in kinds for _, option in offered_options(kind)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code."""
    return run_command("paceline", lambda: parse(argv, find_inputs=True))
