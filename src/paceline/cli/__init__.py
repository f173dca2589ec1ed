# PYTHON_ARGCOMPLETE_OK: completion in shells may ask this program
"""The `paceline` command. Every command parses, calls and prints; the work is done elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pkgutil import resolve_name

from paceline.cli.config import add_configured, name_of
from paceline.cli.help import Formatter, Parser, epilog, overview
from paceline.cli.options import (
    Command,
    absent_inputs,
    add_command,
    offered_options,
    read_options,
    run_command,
    summary,
)
from paceline.core import InvalidRequest
from paceline.core.errors import together
from paceline.version import __version__

# Each entry names the class of a command, which is imported when it is asked for: a start of one
# command must not wait for the others.
COMMANDS: dict[str, str] = {
    "serve": "paceline.cli.serve:ServeCommand",
    "ui": "paceline.cli.serve:UiCommand",
    "generate": "paceline.cli.generate:GenerateCommand",
    "chat": "paceline.cli.chat:ChatCommand",
    "bench": "paceline.cli.bench:BenchCommand",
    "audit": "paceline.cli.audit:AuditCommand",
    "explain": "paceline.cli.explain:ExplainCommand",
    "profile": "paceline.cli.profile:ProfileCommand",
    "list": "paceline.cli.catalogue:ListCommand",
    "pull": "paceline.cli.model:PullCommand",
    "show": "paceline.cli.catalogue:ShowCommand",
    "rm": "paceline.cli.catalogue:RemoveCommand",
    "quality": "paceline.cli.model:QualityCommand",
    "synth": "paceline.cli.synth:SynthCommand",
    "train": "paceline.cli.train:TrainCommand",
    "distil": "paceline.cli.distil:DistilCommand",
    "evaluate": "paceline.cli.evaluate:EvaluateCommand",
    "doctor": "paceline.cli.doctor:ServedDoctorCommand",
    "predict": "paceline.cli.predict:PredictCommand",
    "mock": "paceline.cli.mock:MockCommand",
    "tune": "paceline.cli.tune:TuneCommand",
}
# commands that have jobs below them, and what they do
JOBS: dict[str, tuple[str, dict[str, str]]] = {
    "autospec": (
        "keep drafters good while traffic changes (run), say where cohorts stand (status) and what "
        "was decided and why (explain), try the policy on simulated traffic (simulate), score "
        "drafters on captured answers (score)",
        {
            "run": "paceline.cli.autospec_run:AutospecRunCommand",
            "status": "paceline.cli.autospec_show:AutospecStatusCommand",
            "explain": "paceline.cli.autospec_show:AutospecExplainCommand",
            "simulate": "paceline.cli.autospec:SimulateCommand",
            "score": "paceline.cli.autospec_score:ScoreCommand",
        },
    ),
    "corpus": (
        "build what look-ups draft from out of a model's answers, merge that of replicas, show it",
        {
            "build": "paceline.cli.corpus:CorpusBuildCommand",
            "merge": "paceline.cli.corpus:CorpusMergeCommand",
            "show": "paceline.cli.corpus:CorpusShowCommand",
        },
    ),
    "drafter": (
        "find the drafters for a model; inspect, check (doctor) or convert a DFlash drafter: a "
        "folder or hub id, in z-lab's or speculators' format; print what its drafts cost; watch a "
        "run that trains one, and push it to the hub",
        {
            "find": "paceline.cli.drafter_find:FindCommand",
            "inspect": "paceline.cli.drafter:InspectCommand",
            "doctor": "paceline.cli.drafter:DoctorCommand",
            "convert": "paceline.cli.drafter:ConvertCommand",
            "costs": "paceline.cli.drafter_costs:CostsCommand",
            "watch": "paceline.cli.watch:WatchCommand",
            "push": "paceline.cli.drafter_push:PushCommand",
        },
    ),
    "drafters": (
        "list the versions of drafters in a store, show, add, promote, retire, roll back and "
        "compare them, and print their history",
        {
            "list": "paceline.cli.drafters:DraftersListCommand",
            "show": "paceline.cli.drafters:DraftersShowCommand",
            "add": "paceline.cli.drafters:DraftersAddCommand",
            "promote": "paceline.cli.drafters:DraftersPromoteCommand",
            "retire": "paceline.cli.drafters:DraftersRetireCommand",
            "rollback": "paceline.cli.drafters:DraftersRollbackCommand",
            "diff": "paceline.cli.drafters:DraftersDiffCommand",
            "history": "paceline.cli.drafters:DraftersHistoryCommand",
        },
    ),
    "endpoint": (
        "start replicas of an engine behind Envoy (up), whose drafters can then be replaced; say "
        "who gets which (status), end them (down)",
        {
            "up": "paceline.cli.endpoint:EndpointUpCommand",
            "status": "paceline.cli.endpoint:EndpointStatusCommand",
            "down": "paceline.cli.endpoint:EndpointDownCommand",
        },
    ),
    "engine": (
        "start vLLM, SGLang or Paceline with a drafter (up), say what runs (status), read its "
        "metrics",
        {
            "up": "paceline.cli.engine:UpCommand",
            "status": "paceline.cli.engine:StatusCommand",
            "metrics": "paceline.cli.engine:MetricsCommand",
        },
    ),
    "roofline": (
        "calibrate predictions to your engine with measured steps",
        {
            "fit": "paceline.cli.roofline:FitCommand",
            "measure": "paceline.cli.roofline:MeasureCommand",
        },
    ),
    "traces": (
        "show what `serve --traces` captured: acceptance and speed by cohort and day, or by SQL "
        "(show); delete from it (purge); make a training set of it (set)",
        {
            "show": "paceline.cli.traces:TracesCommand",
            "purge": "paceline.cli.traces:PurgeCommand",
            "set": "paceline.cli.traces:TraceSetCommand",
        },
    ),
}
# the job that is meant where a value stands in its place: `paceline traces FOLDER`
USUAL_JOBS = {"traces": "show"}


def build_parser(words: Sequence[str] = ()) -> Parser:
    """Return the parser of all commands; where `words` start with a command, or with it and its
    job, of this one alone, and import no other."""
    first, second = [*words[:2], "", ""][:2]
    every = {*COMMANDS, *JOBS}
    asked = {first} & every or every
    kinds = {name: imported(path) for name, path in COMMANDS.items() if name in asked}
    parser = Parser(
        prog="paceline",
        usage="paceline COMMAND [options]",
        description="Serve an open-weight language model, losslessly and faster.",
        formatter_class=Formatter,
    )
    parser.add_argument("--version", action="version", version=f"paceline {__version__}")
    commands = parser.add_subparsers(
        metavar="COMMAND", required=True, help=argparse.SUPPRESS, prog=parser.prog
    )
    if asked is every:
        summaries = {name: summary(kind) for name, kind in kinds.items()}
        parser.epilog = overview(summaries | {name: text for name, (text, _) in JOBS.items()})
    for name, kind in kinds.items():
        add_command(commands, name, kind)
    for name in [name for name in JOBS if name in asked]:
        text, paths = JOBS[name]
        usage = f"{parser.prog} {name} JOB [options]"
        place = commands.add_parser(name, description=text, usage=usage, epilog=epilog(name))
        jobs = place.add_subparsers(title="jobs", metavar="JOB", required=True, prog=place.prog)
        for job in [second] if name == first and second in paths else paths:
            add_command(jobs, job, imported(paths[job]), name)
    return parser


def imported(path: str) -> type[Command]:
    """Return the command that an entry of the tables names."""
    kind: type[Command] = resolve_name(path)
    return kind


def parse(argv: Sequence[str] | None = None, *, find_inputs: bool = False) -> Command:
    """Return the command that the arguments state. Raises InvalidRequest, naming the option; it
    also names the inputs that are not there, which with `find_inputs` are an error by themselves.
    """
    words = with_job(sys.argv[1:] if argv is None else argv)
    if "_ARGCOMPLETE" in os.environ:  # a shell asks, with words of its own
        import argcomplete

        argcomplete.autocomplete(build_parser())
    args = build_parser(words).parse_args(words)
    kind: type[Command] = args.kind
    add_configured(args, kind, all_options, _paths())
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
    """Return the names of the options of every command, as `max-model-len`. Imports them all."""
    kinds = map(imported, _paths().values())
    return {name_of(option) for kind in kinds for _, option in offered_options(kind)}


def _paths() -> dict[str, str]:
    """Return the entries of both tables by the command's name, as `traces show`."""
    jobs = {f"{name} {job}": paths[job] for name, (_, paths) in JOBS.items() for job in paths}
    return COMMANDS | jobs


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code."""
    return run_command("paceline", lambda: parse(argv, find_inputs=True))
