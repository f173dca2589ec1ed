"""`paceline evaluate`: what a drafter is worth, on several sets, by the engine that serves it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from paceline.cli import options, show
from paceline.core import InvalidRequest

if TYPE_CHECKING:
    from paceline.evaluate.result import Evaluation, EvaluationSettings
    from paceline.llm import LLM

REGRESSED = 3  # exit code under --fail-on-regression


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="measure what a drafter is worth on sets of prompts",
        description="Answers the prompts of each set without speculation, with the drafter, with "
        "ngram and with warmed suffix decoding, in turns: acceptance length by set, position and "
        "context, speedup over AR with intervals, as an HTML report with JSON beside it. Exit code "
        "1 when a text differs.",
    )
    parser.add_argument("model", help="the target: catalogue name, folder, GGUF file or hub id")
    parser.add_argument("drafter", help="folder or hub id, or a spec as --drafter takes them")
    parser.add_argument(
        "sets",
        nargs="+",
        metavar="SETS",
        help="[NAME=]PATH[:CHOICE]: a folder of `paceline synth` (CHOICE held_out, on_task, replay "
        "or neighbour), a JSON file as bench's, a JSONL file, or a shipped set (demo)",
    )
    _add_options(parser)
    options.add_draft_window_option(parser)
    options.add_network_options(parser)
    parser.set_defaults(run=run)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("evaluation.html"),
        help="the report (default: %(default)s)",
    )
    parser.add_argument(
        "--prompts", type=int, default=40, help="of each set, spread evenly (default: %(default)s)"
    )
    parser.add_argument(
        "--tokens", type=int, default=256, help="most new tokens, up to 256 (default: %(default)s)"
    )
    parser.add_argument(
        "--temperatures",
        type=parse_temperatures,
        default=(0.0, 1.0),
        metavar="LIST",
        help="as 0,1 (the default)",
    )
    parser.add_argument("--runs", type=int, default=1, help="paired runs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first prompt's noise")
    parser.add_argument(
        "--warm",
        action="store_true",
        help="look-ups of auto and hybrid remember the answers that suffix is warmed with",
    )
    parser.add_argument(
        "--before", type=Path, metavar="JSON", help="an earlier evaluation to compare with"
    )
    parser.add_argument(
        "--fail-on-regression",
        action="store_true",
        help=f"with --before: exit code {REGRESSED} when a set's AL fell by more than 5%%",
    )
    parser.add_argument(
        "--card",
        action="store_true",
        help="put the table into the model card of a drafter that `paceline train` wrote",
    )
    parser.add_argument("--max-model-len", type=int, help="longest prompt + output, in tokens")
    parser.add_argument(
        "--kv-memory", type=options.parse_bytes, metavar="SIZE", help="memory for the KV cache"
    )


def parse_temperatures(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        message = f"{text!r} is no list of temperatures; write it like 0,1"
        raise argparse.ArgumentTypeError(message) from None


def run(args: argparse.Namespace) -> int:
    from paceline.evaluate import report
    from paceline.evaluate.result import Evaluation, EvaluationSettings

    settings = EvaluationSettings(
        prompts=args.prompts,
        tokens=args.tokens,
        temperatures=args.temperatures,
        runs=args.runs,
        seed=args.seed,
        warm=args.warm,
    )
    _check_out(args.out)
    if args.fail_on_regression and args.before is None:
        raise InvalidRequest("fail_on_regression", True, "--before beside it")
    before = None if args.before is None else Evaluation.read_file(args.before, "before")
    if args.card and not (Path(args.drafter) / "provenance.json").is_file():
        expected = "a drafter's folder that `paceline train` wrote, with its provenance.json"
        raise InvalidRequest("card", args.drafter, expected)
    result = _measure(args, settings, before)
    args.out.write_text(report.page(result), encoding="utf-8")
    beside = args.out.with_suffix(".json")
    beside.write_text(json.dumps(result.as_json()) + "\n", encoding="utf-8")
    shown = Console(highlight=False)
    shown.print(report.overview(result))
    for line in report.lines(result):
        shown.print(line, style="dim", markup=False)
    fell = [] if before is None else _compared(shown, before, result)
    if args.card:
        _add_to_card(Path(args.drafter), result)
    shown.print(f"{args.out} and {beside}", markup=False, soft_wrap=True)
    shown.print("same text: yes" if result.same_text else "[bold red]same text: NO[/]")
    if not result.same_text:
        return 1
    return REGRESSED if fell and args.fail_on_regression else 0


def _add_to_card(drafter: Path, evaluation: Evaluation) -> None:
    from paceline.evaluate.report import evaluation_table
    from paceline.training.export import add_evaluation

    summary = evaluation.as_json()
    results = summary["results"]
    kept = ("set", "role", "temperature", "requests", "bound", "grammar", "acceptance", "speed")
    summary["results"] = [{name: result[name] for name in kept} for result in results]
    add_evaluation(drafter, evaluation_table(evaluation), summary)


def _check_out(out: Path) -> None:
    if out.suffix != ".html":
        raise InvalidRequest(
            "out", str(out), "a name that ends in .html; the JSON is put beside it"
        )
    if not out.parent.is_dir():
        raise InvalidRequest("out", str(out), "a file in a folder that exists")


def _measure(
    args: argparse.Namespace, settings: EvaluationSettings, before: Evaluation | None
) -> Evaluation:
    from paceline.evaluate.comparison import check_comparable
    from paceline.evaluate.evaluation import evaluate

    names = ("dtype", "device", "backend", "quantize", "threads", "draft_window", "max_model_len",
             "kv_memory")  # fmt: skip
    errors = show.stderr_console()
    with Progress(console=errors, transient=True) as progress:
        task = progress.add_task("loading", total=None)

        def started(llm: LLM, answers: int) -> None:
            if before is not None:
                check_comparable(before, llm.engine.model_name, settings)
            progress.update(task, total=answers)

        return evaluate(
            args.model,
            args.drafter,
            args.sets,
            settings,
            progress=lambda what: progress.update(task, advance=1, description=what),
            started=started,
            **{name: getattr(args, name) for name in names},
        )


def _compared(shown: Console, before: Evaluation, result: Evaluation) -> list[str]:
    from paceline.evaluate.comparison import compare, regressions

    shown.print(compare(before, result), markup=False, soft_wrap=True)
    fell = regressions(before, result)
    for line in fell:
        shown.print(f"[bold red]REGRESSION[/] {line}", soft_wrap=True)
    return fell
