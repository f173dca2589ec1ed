"""The report of an evaluation: HTML, Markdown, and tables for the terminal, from templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from paceline.bench.report.charts import ChartBar, Labels, bars, cloud
from paceline.bench.report.pages import render
from paceline.bench.report.tables import base_table
from paceline.bench.report.words import number, percent, plain
from paceline.core.rounds import speedup_points
from paceline.drafters.spec import BASELINES
from paceline.evaluate import numbers
from paceline.evaluate.result import (
    BLOCK,
    DRAFTER,
    DRAFTERS,
    FULL,
    POLICY,
    THROUGHPUT,
    WARMED,
    AcceptanceNumbers,
    Evaluation,
    RequestRow,
    SetResult,
)

AL = "AL incl. bonus"
PACKAGE = "paceline.evaluate"


def page(evaluation: Evaluation) -> str:
    """Return the report as one HTML file that loads nothing and runs no script."""
    temperatures = []
    for temperature in evaluation.settings.temperatures:
        results = [r for r in evaluation.results if r.temperature == temperature]
        rows = [row for result in results for row in result.rows]
        cloud_of_all = _cloud(evaluation, rows, "every set")
        temperatures.append((temperature, results, _overview(evaluation, results), cloud_of_all))
    values = {
        "title": f"{evaluation.drafter} for {evaluation.model}",
        "evaluation": evaluation,
        "names": evaluation.names,
        "beside_heads": [f"AL, {evaluation.names[drafter]}" for drafter in BASELINES],
        "beside": lambda result: [result.acceptance[drafter].text for drafter in BASELINES],
        "temperatures": temperatures,
        "charts": lambda result: _charts(evaluation, result),
        "notes": lambda result: list(_notes(evaluation, result)),
        "requests": lambda result: list(_requests(evaluation, result)),
        "same_text": lambda result, side: all(row["same_text"][side] for row in result.rows),
        "longest": lambda result: max(len(a.positions) for a in result.acceptance.values()),
    }
    return render("evaluation.html", values, PACKAGE)


def evaluation_table(evaluation: Evaluation) -> str:
    """Return a Markdown table of the evaluation, with the acceptance by position below it."""
    return render("evaluation.md", {"evaluation": evaluation}, PACKAGE).rstrip()


def overview(evaluation: Evaluation) -> Table:
    """Return a row for each set and temperature; it fits a terminal of 80 columns."""
    made = base_table(f"{evaluation.drafter} for {evaluation.model}")
    made.add_column("set", overflow="fold", min_width=10)
    beside = ["\n".join(["AL", *evaluation.names[d].split(", ")][-2:]) for d in BASELINES]
    for name in ("T", "AL incl.\nbonus", *beside, "speedup\nover AR", "full", "full\n÷ AL",
                 "same\ntext"):  # fmt: skip
        made.add_column(name, justify="right", no_wrap=True)
    for result in evaluation.results:
        block = result.speed[BLOCK]
        made.add_row(
            f"{result.set}\n[dim]{result.role}[/]",
            plain(result.temperature),
            _two_lines(result.acceptance[DRAFTER].text),
            *(number(result.acceptance[drafter].al) for drafter in BASELINES),
            _two_lines(result.speed[POLICY].text),
            number(block.speedup, "×"),
            number(block.speedup_per_token),
            "[green]yes[/]" if result.same_text else "[bold red]NO[/]",
        )
    return made


def lines(evaluation: Evaluation) -> list[str]:
    """Return AL by position and by context, and remarks on the sets, as lines for the terminal."""
    return render("lines.txt", {"evaluation": evaluation}, PACKAGE).splitlines()


def _two_lines(text: str) -> str:
    """Put the interval below the number."""
    value, _, interval = text.partition(" ")
    return f"{value}\n[dim]{interval.strip('()')}[/]"


def _notes(evaluation: Evaluation, result: SetResult) -> Iterator[str]:
    if result.bound_note is not None:
        yield result.bound_note
    warmed = " and ".join(WARMED)
    warmed += " and the drafter itself were" if evaluation.settings.warm else " was"
    yield f"{warmed} warmed with {result.warmed}"
    if result.left_out:
        yield f"{result.left_out} prompts were longer than the context allows: left out"


def _requests(
    evaluation: Evaluation, result: SetResult
) -> Iterator[tuple[RequestRow, float | None, float | None, float | None]]:
    """Yield each request with its AL, and its speedup by policy."""
    tokens, block = evaluation.settings.tokens, evaluation.block
    for row in result.rows:
        al = numbers.acceptance([row], BLOCK, tokens=tokens, block=block).al
        speedups = [numbers.speed([row], side, tokens=tokens).speedup for side in (POLICY, BLOCK)]
        yield row, al, speedups[0], speedups[1]


# -- charts ----------------------------------------------------------------------------------------


def _overview(evaluation: Evaluation, results: Sequence[SetResult]) -> str:
    names = evaluation.names
    groups = [
        [_al_bar(result, result.acceptance[drafter], names[drafter]) for drafter in DRAFTERS]
        for result in results
    ]
    labels = Labels("Acceptance length by set", "set", AL)
    return bars([result.set for result in results], list(names.values()), groups, labels, line=1.0)


def _al_bar(result: SetResult, acceptance: AcceptanceNumbers, called: str) -> ChartBar:
    note = f"{called} on {result.set}: {acceptance.text}, {acceptance.rounds} rounds"
    return ChartBar(acceptance.al, note, acceptance.al_interval)


def _charts(evaluation: Evaluation, result: SetResult) -> Iterator[str]:
    yield _positions(evaluation, result)
    yield _contexts(evaluation.names, result)
    yield _cloud(evaluation, result.rows, result.set)


def _positions(evaluation: Evaluation, result: SetResult) -> str:
    names = evaluation.names
    groups = [
        [_position_bar(result.acceptance[drafter], k, names[drafter]) for drafter in DRAFTERS]
        for k in range(1, evaluation.block + 1)
    ]
    title = f"Acceptance by position: {result.set}"
    labels = Labels(title, "draft position", "share of rounds that accepted it")
    positions = [str(k) for k in range(1, evaluation.block + 1)]
    return bars(positions, list(names.values()), groups, labels)


def _position_bar(acceptance: AcceptanceNumbers, k: int, called: str) -> ChartBar:
    if k > len(acceptance.positions):
        return ChartBar(None)
    position = acceptance.positions[k - 1]
    note = (
        f"{called}, position {k}: {percent(position.share)} of all rounds, "
        f"{percent(position.conditional)} of those that came to it"
    )
    return ChartBar(position.share, note)


def _contexts(names: Mapping[str, str], result: SetResult) -> str:
    bins = [{bin.start: bin for bin in result.acceptance[d].contexts} for d in DRAFTERS]
    called = {start: bin.label for by_start in bins for start, bin in by_start.items()}
    groups = []
    for start in sorted(called):
        group = []
        for name, by_start in zip(names.values(), bins, strict=True):
            bin = by_start.get(start)
            note = bin and f"{name}, {bin.label} tokens: AL {bin.al:.2f}, {bin.rounds} rounds"
            group.append(ChartBar(None) if bin is None else ChartBar(bin.al, note or ""))
        groups.append(group)
    title = f"Acceptance length by context: {result.set}"
    labels = Labels(title, "tokens before the anchor", AL)
    return bars([called[s] for s in sorted(called)], list(names.values()), groups, labels, line=1.0)


def _cloud(evaluation: Evaluation, rows: Sequence[RequestRow], name: str) -> str:
    policies = (THROUGHPUT, FULL)
    points = [
        [
            (x, y, f"{prompt}, {policy}: {y:.2f}× at {x:.2f} tokens per round")
            for x, y, prompt in speedup_points(
                rows, f"{DRAFTER}/{policy}", tokens=evaluation.settings.tokens
            )
        ]
        for policy in policies
    ]
    title = f"Speedup against tokens per round: {name}"
    x_label = "tokens per round incl. bonus (AL), of each request"
    labels = Labels(title, x_label, "speedup over AR")
    return cloud([f"{evaluation.drafter}, {policy}" for policy in policies], points, labels)
