"""`paceline evaluate`: what a drafter is worth, on several sets, by the engine that serves it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from paceline.cli import options, show
from paceline.cli.evaluated_engine import check_served
from paceline.cli.option import Argument, Only
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.engine.config import EngineConfig

if TYPE_CHECKING:
    from paceline.evaluate.result import Evaluation, EvaluationSettings
    from paceline.llm import LLM

REGRESSED = 3  # exit code under --fail-on-regression
BROKE_OFF = 3  # exit code where an engine failed on the way
EngineOption = Annotated[str, Argument(flags=("--engine",), metavar="URL|vllm|paceline")]
SETTINGS = ("prompts", "tokens", "temperatures", "runs", "seed", "warm")
ENGINE_OPTIONS = (
    "dtype", "device", "backend", "quantize", "threads", "draft_window", "max_model_len",
    "kv_memory",
)  # fmt: skip


@checked
class EvaluateCommand:
    """Measure what a drafter is worth on sets of prompts.

    Answers the prompts of each set without speculation, with the drafter, with ngram and with
    warmed suffix decoding, in turns: acceptance length by set, position and context, speedup over
    AR with intervals, as an HTML report with JSON beside it. Exit code 1 when a text differs.
    With --engine the answers are those of an engine that serves elsewhere; exit code 3 when it
    fails on the way, with a partial report.
    """

    model: options.Positional = about(f"the target: {options.MODEL_HELP}")
    drafter: options.Positional = about(
        "folder or hub id, the name of a model that a drafter is shipped for, or a spec as "
        "--drafter takes them"
    )
    sets: Annotated[options.Strings, options.POSITIONAL] = about(
        "[NAME=]PATH[:CHOICE]: a folder of `paceline synth` (CHOICE held_out, on_task, replay, "
        "neighbour or foreign), a JSON file as bench's, a JSONL file, or a shipped set (demo)"
    )
    out: options.OutputFile = about("the report", Path("evaluation.html"))
    prompts: int = about("prompts of each set, spread evenly", 40)
    tokens: int = about("most new tokens, up to 256", 256)
    temperatures: options.Numbers = about("each is evaluated by itself", (0.0, 1.0))
    runs: int = about("paired runs", 1)
    seed: int = about("of the first prompt's noise", 0)
    warm: bool = about("look-ups of auto and hybrid remember what suffix is warmed with", False)
    before: options.File | None = about("an earlier evaluation's JSON to compare with", None)
    fail_on_regression: bool = about(
        f"with --before: exit code {REGRESSED} when a set's AL fell by more than 5%", False
    )
    served: EngineOption | None = about(
        "a running server to evaluate, as http://127.0.0.1:8000 (of `paceline serve` or vLLM), or "
        "an engine to start here with the drafter and without: vllm, paceline",
        None,
    )
    reference: str | None = about(
        "with --engine URL: a second server, of the same target without speculation", None
    )
    engine_arg: options.Strings = about(
        "with --engine vllm or paceline: an argument for its `serve`, repeatable", ()
    )
    api_key: str | None = about("with --engine URL: its API key", None)
    card: bool = about("put the table into the card of a drafter that `train` wrote", False)
    engine: Annotated[EngineConfig, Only(ENGINE_OPTIONS)] = options.DEFAULTS

    def __post_init__(self) -> None:
        if self.served is not None:
            check_served(self.served, self.reference, self.engine_arg, self.warm, self.engine)
        elif self.reference is not None or self.engine_arg:
            name = "engine_arg" if self.engine_arg else "reference"
            raise InvalidRequest(name, getattr(self, name), "--engine beside it")
        if self.out.suffix != ".html":
            expected = "a name that ends in .html; the JSON is put beside it"
            raise InvalidRequest("out", str(self.out), expected)
        if self.fail_on_regression and self.before is None:
            raise InvalidRequest("fail_on_regression", True, "--before beside it")
        if self.card and not (Path(self.drafter) / "provenance.json").is_file():
            expected = "a drafter's folder that `paceline train` wrote, with its provenance.json"
            raise InvalidRequest("card", self.drafter, expected)

    def run(self) -> int:
        from paceline.engines.evaluation import EvaluationBroke
        from paceline.evaluate.result import Evaluation, EvaluationSettings

        settings = EvaluationSettings(**{name: getattr(self, name) for name in SETTINGS})
        before = None if self.before is None else Evaluation.read_file(self.before, "before")
        try:
            result = self._measure(settings, before)
        except EvaluationBroke as broke:
            if broke.partial is not None:
                self._report(broke.partial)
            print(f"paceline: error: {broke}", file=sys.stderr)
            return BROKE_OFF
        console = self._report(result)
        fell = [] if before is None else _compared(console, before, result)
        if self.card:
            _add_to_card(Path(self.drafter), result)
        if result.text_is_broken:
            return 1
        return REGRESSED if fell and self.fail_on_regression else 0

    def _report(self, result: Evaluation) -> Console:
        """Write the report and the JSON beside it, and print the table."""
        from paceline.evaluate import report

        self.out.write_text(report.page(result), encoding="utf-8")
        beside = self.out.with_suffix(".json")
        beside.write_text(json.dumps(result.as_json()) + "\n", encoding="utf-8")
        console = show.report_console()
        console.print(report.overview(result))
        for line in report.lines(result):
            console.print(line, style="dim", markup=False)
        console.print(f"{self.out} and {beside}", markup=False, soft_wrap=True)
        style = "bold red" if result.text_is_broken else ""
        console.print(result.same_text_line, style=style, soft_wrap=True)
        return console

    def _measure(self, settings: EvaluationSettings, before: Evaluation | None) -> Evaluation:
        from paceline.evaluate.comparison import check_comparable
        from paceline.evaluate.evaluation import evaluate

        if self.served is not None:
            return self._measure_served(self.served, settings, before)
        with show.progress() as progress:
            task = progress.add_task("loading", total=None)

            def started(llm: LLM, answers: int) -> None:
                if before is not None:
                    check_comparable(before, llm.engine.model_name, settings)
                progress.update(task, total=answers)

            return evaluate(
                self.model,
                self.drafter,
                self.sets,
                settings,
                progress=lambda what: progress.update(task, advance=1, description=what),
                started=started,
                **{name: getattr(self.engine, name) for name in ENGINE_OPTIONS},
            )

    def _measure_served(
        self, served: str, settings: EvaluationSettings, before: Evaluation | None
    ) -> Evaluation:
        from paceline.cli.evaluated_engine import evaluation_of, open_servers
        from paceline.evaluate.comparison import check_comparable

        with show.progress() as progress:
            task = progress.add_task("looking for the engine", total=None)
            servers = open_servers(
                self, served, lambda what: progress.update(task, description=what)
            )
            try:
                evaluation = evaluation_of(servers, self.model, self.drafter, self.sets, settings)
                if before is not None:
                    check_comparable(before, evaluation.model, settings)
                evaluation.started = lambda answers: progress.update(task, total=answers)
                evaluation.progress = lambda what: progress.update(
                    task, advance=1, description=what
                )
                return evaluation.run()
            finally:
                servers.close()


def _add_to_card(drafter: Path, evaluation: Evaluation) -> None:
    from paceline.evaluate.report import evaluation_table
    from paceline.training.export import add_evaluation

    add_evaluation(drafter, evaluation_table(evaluation), evaluation.as_json())


def _compared(console: Console, before: Evaluation, result: Evaluation) -> list[str]:
    """Print how it compares with an earlier evaluation. Return what got worse."""
    from paceline.evaluate.comparison import compare, regressions

    console.print(compare(before, result), markup=False, soft_wrap=True)
    fell = regressions(before, result)
    for line in fell:
        console.print(f"[bold red]REGRESSION[/] {line}", soft_wrap=True)
    return fell
