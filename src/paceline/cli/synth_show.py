"""The output of `paceline synth`: its sources, its progress, and the finished set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from paceline.cli import show

if TYPE_CHECKING:
    from paceline.synth.answer import Answerer, Speed
    from paceline.synth.app import App
    from paceline.synth.collect import Collector
    from paceline.synth.job import SynthJob
    from paceline.synth.run import Run, ShowRun
    from paceline.synth.sources import Source

KEPT = ("prompts", "rows", "answer_tokens", "rows_on_task", "rows_replay", "rows_neighbour")


def source_table(app: App, sources: Sequence[Source]) -> Table:
    """Return a table of the prompts found, left out (too short, too long, twice, no text) and
    taken; how many items of the plan they make, and their share of it."""
    from paceline.synth.plan import available, shares

    table = Table(title=f"{app.name}: prompts", title_justify="left", title_style="bold")
    for column in ("source", "part", "language", "licence"):
        table.add_column(column)
    for column in ("found", "left out", "taken", "items", "share"):
        table.add_column(column, justify="right")
    for source, share in zip(sources, shares(app, sources), strict=True):
        spec, items, taken = source.spec, available(source), len(source.prompts)
        counts = ("-",) * 3 if spec.kind == "self" else (source.found, source.found - taken, taken)
        table.add_row(
            escape(spec.name),
            spec.part.replace("_", "-"),
            spec.language,
            escape(source.licence),
            *map(str, counts),
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
    with Progress(*columns, console=show.stderr_console(), transient=True) as progress:
        unit = app.size.unit.replace("_", " ")
        task = progress.add_task(unit, total=app.size.amount, speed="")

        def show_run(run: Run) -> None:
            speed = run.answerer.speed()
            text = f"{speed.tokens_per_second:.0f} tokens/s, {speed.batch:.0f} at once"
            progress.update(task, completed=run.collector.amount, speed=text)

        yield show_run


def report(console: Console, out: Path, collector: Collector, speed: Speed) -> None:
    counts = collector.manifest.counts
    rows, tokens = counts.get("rows", 0), counts.get("answer_tokens", 0)
    console.print(f"{rows} rows with {tokens} answer tokens in {escape(str(out))}")
    dropped = [f"{count} {why}" for why, count in counts.items() if why not in KEPT]
    if dropped:
        console.print("dropped: " + ", ".join(dropped))
    if not collector.complete:
        wanted = collector.app.size
        console.print(
            f"every prompt has been asked: {collector.amount} {wanted.unit.replace('_', ' ')} of "
            f"{wanted.amount}; more sources, or more `samples`, make more"
        )
    if speed.tokens:
        console.print(
            f"{speed.tokens} tokens in {speed.seconds:.0f} s: {speed.tokens_per_second:.0f} "
            f"tokens/s, {speed.batch:.1f} requests at once in the mean",
            style="dim",
        )


def preview(console: Console, job: SynthJob, answerer: Answerer, count: int) -> None:
    """Print prompts as they are sent, and the target's answers."""
    from paceline.synth.run import preview as samples

    decode = job.asker.target.tokenizer.decode
    try:
        for sample in samples(job.app, job.sources, job.asker, answerer, count):
            console.rule(escape(sample.item.source), align="left")
            if sample.prompt_ids:
                console.print(escape(decode(sample.prompt_ids)), style="dim")
            if sample.answer is None:
                console.print(f"dropped: {sample.reason}", style="red")
            else:
                console.print(escape(decode(sample.answer.ids)))
    finally:
        answerer.close()
