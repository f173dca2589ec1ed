"""`paceline autospec score`: what drafters would have accepted, without traffic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from paceline.cli import show
from paceline.cli.option import Argument, Only
from paceline.cli.options import (
    DEFAULTS,
    MODEL_HELP,
    POSITIONAL,
    Count,
    OutputFile,
    Positional,
    Strings,
)
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.engine.config import EngineConfig

if TYPE_CHECKING:
    from paceline.autospec.scores.matrix import Estimate, ScoreMatrix

ENGINE_OPTIONS = (
    "dtype", "device", "backend", "quantize", "threads", "draft_window", "max_model_len",
    "kv_memory",
)  # fmt: skip
Specs = Annotated[Strings, Argument(flags=("--drafter",), metavar="SPEC")]
USUAL = ("none", "suffix", "auto")


@checked
class ScoreCommand:
    """Score drafters on answers that the model gave, without traffic.

    Every drafter drafts for every answer from its first token on, as an engine would have asked it,
    and the answer judges the drafts: acceptance length by cohort, with its 95% interval, and the
    speedup that it is worth by this machine's cost table, with the best draft length. An answer
    that a drafter's corpus may know already is left out.
    """

    model: Positional = about(f"the target: {MODEL_HELP}")
    answers: Annotated[Strings, POSITIONAL] = about(
        "where the answers are: a folder of `paceline serve --traces`, of `paceline synth` (FOLDER "
        "or FOLDER:SPLIT), or a JSONL file of token ids"
    )
    drafters: Specs = about("a drafter, as `serve` takes it, or `none`; repeatable", USUAL)
    requests: Count = about("requests at once, for the speedup", 1)
    key: str | None = about("score also on what only drafters of this API key may learn", None)
    most: Count | None = about("most answers, spread evenly", None, "all")
    share_answers: bool = about("look-ups remember the answers before, within the key", False)
    no_costs: bool = about("no speedups: then look-ups alone need no model in memory", False)
    json: OutputFile | None = about("write the matrix as JSON", None)
    engine: Annotated[EngineConfig, Only(ENGINE_OPTIONS)] = DEFAULTS

    def __post_init__(self) -> None:
        if not self.drafters:
            raise InvalidRequest("drafter", list(self.drafters), "at least one")

    def run(self) -> int:
        matrix = self._score()
        console = Console(highlight=False)
        console.print(_table(matrix))
        left_out = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in matrix.left_out.items())
        line = f"{matrix.texts} answers of {matrix.model}, {matrix.tokens} tokens"
        console.print(f"{line}; left out: {left_out}" if left_out else line, style="dim")
        if self.json is not None:
            self.json.write_text(json.dumps(matrix.as_json(), indent=1) + "\n", "utf-8")
        return 0

    def _score(self) -> ScoreMatrix:
        from paceline.autospec.answers import read_all_answers
        from paceline.autospec.scores.candidates import CandidateDrafters
        from paceline.autospec.scores.run import score
        from paceline.evaluate.sets import evenly

        answers = list(read_all_answers(self.answers, Path(self.model).name, for_key=self.key))
        if self.most is not None:
            answers = evenly(answers, self.most)
        options = {name: getattr(self.engine, name) for name in ENGINE_OPTIONS}
        with show.progress() as progress:
            task = progress.add_task("loading", total=None)
            candidates = CandidateDrafters.load(
                self.model, self.drafters, with_costs=not self.no_costs, **options
            )
            progress.update(task, total=len(answers), description="scoring")
            return score(
                candidates,
                answers,
                requests=self.requests,
                shares_answers=self.share_answers,
                progress=lambda texts: progress.update(task, advance=texts),
            )


def _table(matrix: ScoreMatrix) -> object:
    """Return a row for each cohort and drafter. AL counts the bonus token."""
    from paceline.autospec.scores.matrix import ALL

    columns = ("cohort", "drafter", "answers", "AL", "±", "tok/round", "speedup", "draft")
    table = show.plain_table(*columns, left=("cohort", "drafter"))
    for cohort in (ALL, *matrix.cohorts):
        for name in matrix.drafters:
            cell = matrix.cell(name, cohort)
            table.add_row(
                cohort or "all",
                name,
                str(cell.requests),
                _value(cell.al),
                "–" if cell.al is None or cell.al.error is None else f"{1.96 * cell.al.error:.2f}",
                _value(cell.tokens_per_round),
                _value(cell.speedup),
                "–" if cell.draft_length is None else str(cell.draft_length),
            )
    return table


def _value(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.value:.2f}"
