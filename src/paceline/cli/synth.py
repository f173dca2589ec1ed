"""`paceline synth`: a training set out of public prompts and the target's own answers."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Strict
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from paceline.bench.load.client import served_model
from paceline.cli import show
from paceline.cli.option import Argument, Only
from paceline.cli.options import Count, ModelOption, Strings, refuse_engine_options
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between
from paceline.core.names import local_path
from paceline.dataset.training_set import PARTS
from paceline.engine.config import EngineConfig

if TYPE_CHECKING:
    from paceline.synth.answer import Answerer, Speed
    from paceline.synth.app import App
    from paceline.synth.folder import Collector
    from paceline.synth.job import Run, ShowRun, SynthJob
    from paceline.synth.sources import Source

KEPT = ("prompts", "rows", "answer_tokens", *(f"rows_{part}" for part in PARTS))
# The job chooses its own budget of tokens: this one is only for no --max-num-seqs to be refused.
ENGINE = EngineConfig(drafter=None, token_budget=1 << 20)
ENGINE_OPTIONS = (
    "dtype", "device", "backend", "quantize", "threads", "max_num_seqs", "kv_memory", "drafter",
)  # fmt: skip


def _find_app(text: str) -> None:
    path = local_path(text, "app")
    if not path.is_file():
        raise InvalidRequest("app", text, "the file that describes the application; there is none")


AppFile = Annotated[
    Path, Strict(False), Argument(positional=True, metavar="APP.yaml", look_up=_find_app)
]
OutputFolder = Annotated[Path, Strict(False), Argument(flags=("-o", "--out"), metavar="FOLDER")]


@checked
class SynthCommand:
    """Make a training set: public prompts, answered by the target.

    Answers the prompts that app.yaml describes, as the application would, and writes token ids with
    loss spans as Parquet. Run it again to go on where it stopped.
    """

    app: AppFile = about("the application")
    out: OutputFolder | None = about("where the set goes", None)
    model: ModelOption | None = about("the target, instead of the one that app.yaml names", None)
    rows: Count | None = about("rows to make, instead of app.yaml's size", None)
    hours: Annotated[float, Between(0, open=True)] | None = about(
        "hours of this start after which no new prompt is begun: the set is then as large as it is",
        None,
    )
    preview: Count | None = about("answer N prompts of each source, write nothing", None)
    restart: bool = about("delete what FOLDER holds of a set", False)
    user_data: Annotated[bool, Argument(action=argparse.BooleanOptionalAction)] = about(
        "allow sources that are marked as users' own data", False
    )
    json: bool = about("print what was done as JSON", False)
    url: Strings = about(
        "an OpenAI-compatible server to use in place of an own engine, repeatable", ()
    )
    served_model: str | None = about("with --url: the target's id there", None)
    api_key: str | None = about("with --url: the servers' API key", None)
    concurrency: Count | None = about("with --url: requests in flight over all servers", None, "64")
    engine: Annotated[EngineConfig, Only(ENGINE_OPTIONS)] = ENGINE

    def __post_init__(self) -> None:
        if (self.out is None) == (self.preview is None):
            out = self.out and str(self.out)
            raise InvalidRequest("out", out, "a folder for the set, or --preview instead")
        if self.hours is not None and self.out is None:
            raise InvalidRequest("hours", self.hours, "--out: a preview has no hours")
        if self.url:
            refuse_engine_options(self.engine, ENGINE)
            return
        for field in ("served_model", "api_key", "concurrency"):
            if getattr(self, field) is not None:
                raise InvalidRequest(field, getattr(self, field), "--url beside it")

    def run(self) -> int:
        from paceline.synth.job import prepare, read

        app = self._load_app()
        sources = read(app, user_data=self.user_data, endpoint=bool(self.url))
        console = show.report_console(stderr=self.json)
        console.print(source_table(app, sources))
        job = prepare(app, sources, user_data=self.user_data)
        if self.out is not None:
            job.check(self.out, restart=self.restart)
        answerer = self._answerer(job)
        if self.out is None:
            show_samples(console, job, answerer, self.preview or 0)
            return 0
        with progress_bar(app) as progress:
            collector = job.make(
                self.out, answerer, restart=self.restart, hours=self.hours, progress=progress
            )
        if self.json:
            counts = collector.manifest.counts
            summary = {
                "set": str(self.out),
                "complete": collector.complete,
                "out_of_time": collector.out_of_time,
                "counts": counts,
                "overlap": collector.manifest.app["overlap"],
            }
            print(json.dumps(summary | answerer.speed().as_json()))
        else:
            report(console, self.out, collector, answerer.speed())
        return 0

    def _load_app(self) -> App:
        from paceline.synth.app import load_app

        app = load_app(self.app)
        if self.model is not None:
            app = app.model_copy(update={"model": self.model})
        return app if self.rows is None else app.with_size(self.rows)

    def _answerer(self, job: SynthJob) -> Answerer:
        """Return what answers. Raises InvalidRequest or ModelError where nobody could."""
        if not self.url:
            return job.own(**{name: getattr(self.engine, name) for name in ENGINE_OPTIONS})
        model = self.served_model or asyncio.run(served_model(self.url[0], self.api_key))
        limit = {} if self.concurrency is None else {"concurrency": self.concurrency}
        return job.servers(self.url, model, api_key=self.api_key, **limit)


# -- output ---------------------------------------------------------------------------------------


def source_table(app: App, sources: Sequence[Source]) -> Table:
    """Return a table of the prompts found, left out (too short, too long, twice, no text) and
    taken; how many items of the plan they make, and their share of it."""
    from paceline.synth.plan import available, shares
    from paceline.synth.source_spec import TurnSource

    table = Table(title=f"{app.name}: prompts", title_justify="left", title_style="bold")
    for column in ("source", "part", "language", "licence"):
        table.add_column(column)
    for column in ("found", "left out", "taken", "items", "share"):
        table.add_column(column, justify="right")
    for source, share in zip(sources, shares(app, sources), strict=True):
        spec, items, taken = source.spec, available(source), len(source.prompts)
        counts = (source.found, source.found - taken, taken)
        table.add_row(
            escape(spec.name),
            spec.part.replace("_", "-"),
            spec.language,
            escape(source.licence),
            *(("-",) * 3 if isinstance(spec, TurnSource) else map(str, counts)),
            "as needed" if items is None else str(items),
            f"{100 * share:.1f}%",
        )
    return table


@contextmanager
def progress_bar(app: App) -> Iterator[ShowRun]:
    """Show a progress bar in the unit of the application's size, with the speed of the answers."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[speed]}"),
    )
    with show.SignsOfLife(*columns) as progress:
        unit = app.size.unit.replace("_", " ")
        task = progress.add_task(unit, total=app.size.amount, speed="")

        def show_run(run: Run) -> None:
            speed = run.answerer.speed()
            text = f"{speed.tokens_per_second:.0f} tokens/s, {speed.batch:.0f} at once"
            progress.update(task, completed=run.collector.amount, speed=text)

        yield show_run


def report(console: Console, out: Path, collector: Collector, speed: Speed) -> None:
    from paceline.dataset.overlap import read_overlap

    counts = collector.manifest.counts
    rows, tokens = counts.get("rows", 0), counts.get("answer_tokens", 0)
    console.print(f"{rows} rows with {tokens} answer tokens in {escape(str(out))}")
    dropped = [f"{count} {why}" for why, count in counts.items() if why not in KEPT]
    if dropped:
        console.print("dropped: " + ", ".join(dropped))
    for split, overlap in read_overlap(collector.manifest.app).items():
        console.print(f"{split.replace('_', '-')}: {overlap.text}")
    if not collector.complete:
        wanted = collector.app.size
        made = f"{collector.amount} {wanted.unit.replace('_', ' ')} of {wanted.amount}"
        if not collector.out_of_time:
            why, more = "every prompt has been asked", "more sources, or more `samples`, make more"
        else:
            why, more = "the hours are over", "the same command makes more"
        console.print(f"{why}: {made}; {more}")
    if speed.tokens:
        console.print(
            f"{speed.tokens} tokens in {speed.seconds:.0f} s: {speed.tokens_per_second:.0f} "
            f"tokens/s, {speed.batch:.1f} requests at once in the mean",
            style="dim",
        )


def show_samples(console: Console, job: SynthJob, answerer: Answerer, count: int) -> None:
    """Print prompts as they are sent, and the target's answers."""
    decode = job.asker.target.tokenizer.decode
    try:
        for sample in job.preview(answerer, count):
            console.rule(escape(sample.item.source), align="left")
            if sample.ask is not None:
                console.print(escape(decode(sample.ask.prompt_ids)), style="dim")
            if sample.answer is None:
                console.print(f"dropped: {sample.reason}", style="red")
            else:
                console.print(escape(decode(sample.answer.ids)))
    finally:
        answerer.close()
