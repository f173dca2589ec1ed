"""The report of an evaluation: HTML, Markdown, and tables for the terminal, from templates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from paceline.bench.report.charts import ChartBar, Labels, bars, cloud
from paceline.bench.report.pages import render
from paceline.bench.report.tables import base_table
from paceline.bench.report.words import number, percent, plain
from paceline.core.rounds import speedup_points
from paceline.evaluate import numbers
from paceline.evaluate.result import (
    BLOCK,
    DRAFTER,
    POLICY,
    WARMED,
    AcceptanceNumbers,
    ContextBin,
    Evaluation,
    RequestRow,
    SetResult,
    SpeedNumbers,
)

AL = "AL incl. bonus"
TEXT_STYLES = {"yes": "[green]yes[/]", "NO": "[bold red]NO[/]"}
NO_SPEED = SpeedNumbers(
    requests=0, speedup=None, speedup_interval=None, tokens_per_round=None,
    speedup_per_token=None, tpot_ms=None, ar_tpot_ms=None,
)  # fmt: skip
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
        "beside_heads": [
            f"{what}, {evaluation.names[drafter]}"
            for drafter in evaluation.beside
            for what in ("AL", "speedup")
        ],
        "beside": lambda result: [
            text for d in evaluation.beside for text in _al_and_speed(evaluation, result, d)
        ],
        "speed": lambda result: _al_and_speed(evaluation, result, DRAFTER)[1],
        "temperatures": temperatures,
        "charts": lambda result: _charts(evaluation, result),
        "notes": lambda result: list(_notes(evaluation, result)),
        "requests": lambda result: list(_requests(evaluation, result)),
        "speedups": [
            f"speedup, {evaluation.policy_name(side)}" for side in _speed_sides(evaluation)
        ],
        "longest": lambda result: max(len(a.positions) for a in result.acceptance.values()),
    }
    return render("evaluation.html", values, PACKAGE)


def evaluation_table(evaluation: Evaluation) -> str:
    """Return a Markdown table of the evaluation, with the acceptance by position below it."""
    return render("evaluation.md", {"evaluation": evaluation}, PACKAGE).rstrip()


def overview(evaluation: Evaluation) -> Table:
    """Return a row for each set and temperature; it fits a terminal of 80 columns. Of drafters that
    need no training, AL stands above the speedup."""
    made = base_table(f"{evaluation.drafter} for {evaluation.model}")
    made.add_column("set", overflow="fold", min_width=10)
    beside = ["\n".join([*evaluation.names[d].split(", "), ""][:2]) for d in evaluation.beside]
    for name in ("T", "AL incl.\nbonus", *beside, "speedup\nover AR", "full", "full\n÷ AL",
                 "same\ntext"):  # fmt: skip
        made.add_column(name, justify="right", no_wrap=True)
    for result in evaluation.results:
        block, text = result.speed.get(BLOCK, NO_SPEED), evaluation.same_text_of(result)
        made.add_row(
            f"{result.set}\n[dim]{result.role}[/]",
            plain(result.temperature),
            _two_lines(result.acceptance[DRAFTER].text),
            *(_beside(evaluation, result, drafter) for drafter in evaluation.beside),
            _two_lines(result.speed.get(evaluation.served_side, NO_SPEED).text),
            number(block.speedup, "×"),
            number(block.speedup_per_token),
            TEXT_STYLES.get(text, text),
        )
    return made


def _beside(evaluation: Evaluation, result: SetResult, drafter: str) -> str:
    """Return AL, and the speedup over AR below it."""
    speed = evaluation.speed_of(result, drafter) or NO_SPEED
    return f"{number(result.al_of(drafter))}\n{number(speed.speedup, '×')}"


def _al_and_speed(evaluation: Evaluation, result: SetResult, drafter: str) -> tuple[str, str]:
    speed = evaluation.speed_of(result, drafter) or NO_SPEED
    return result.acceptance[drafter].text, speed.text


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
    if evaluation.beside:
        warmed = " and ".join(WARMED)
        warmed += " and the drafter itself were" if evaluation.settings.warm else " was"
        yield f"{warmed} warmed with {result.warmed}"
    if result.left_out:
        yield f"{result.left_out} prompts were longer than the context allows: left out"


def _requests(
    evaluation: Evaluation, result: SetResult
) -> Iterator[tuple[RequestRow, float | None, list[float | None]]]:
    """Yield each request with its AL, and its speedup by policy."""
    tokens, block = evaluation.settings.tokens, evaluation.block
    sides = _speed_sides(evaluation)
    for row in result.rows:
        al = numbers.acceptance([row], BLOCK, tokens=tokens, block=block).al
        yield row, al, [numbers.speed([row], side, tokens=tokens).speedup for side in sides]


def _speed_sides(evaluation: Evaluation) -> list[str]:
    """Return the sides of the drafter that were timed beside AR."""
    timed = {side for result in evaluation.results for side in result.speed}
    return [side for side in (POLICY, BLOCK) if side in timed]


def _overview(evaluation: Evaluation, results: Sequence[SetResult]) -> str:
    groups = [
        [
            ChartBar(a.al, f"{name} on {result.set}: {a.text}, {a.rounds} rounds", a.al_interval)
            for name, a in _acceptances(evaluation, result)
        ]
        for result in results
    ]
    names, sets = list(evaluation.names.values()), [result.set for result in results]
    return bars(sets, names, groups, Labels("Acceptance length by set", "set", AL), line=1.0)


def _acceptances(evaluation: Evaluation, result: SetResult) -> list[tuple[str, AcceptanceNumbers]]:
    """Return each drafter's name in reports, with its numbers on a set."""
    return [(name, result.acceptance[drafter]) for drafter, name in evaluation.names.items()]


def _charts(evaluation: Evaluation, result: SetResult) -> Iterator[str]:
    yield _positions(evaluation, result)
    yield _contexts(evaluation, result)
    yield _cloud(evaluation, result.rows, result.set)


def _positions(evaluation: Evaluation, result: SetResult) -> str:
    positions = range(1, evaluation.block + 1)
    groups = [
        [_position_bar(name, a, k) for name, a in _acceptances(evaluation, result)]
        for k in positions
    ]
    title = f"Acceptance by position: {result.set}"
    labels = Labels(title, "draft position", "share of rounds that accepted it")
    return bars(list(map(str, positions)), list(evaluation.names.values()), groups, labels)


def _position_bar(name: str, acceptance: AcceptanceNumbers, k: int) -> ChartBar:
    if k > len(acceptance.positions):
        return ChartBar(None)
    position = acceptance.positions[k - 1]
    note = (
        f"{name}, position {k}: {percent(position.share)} of all rounds, "
        f"{percent(position.conditional)} of those that came to it"
    )
    return ChartBar(position.share, note)


def _contexts(evaluation: Evaluation, result: SetResult) -> str:
    bins = {
        name: {bin.start: bin for bin in a.contexts} for name, a in _acceptances(evaluation, result)
    }
    labelled = {start: bin.label for by_start in bins.values() for start, bin in by_start.items()}
    groups = [
        [_context_bar(name, by_start.get(start)) for name, by_start in bins.items()]
        for start in sorted(labelled)
    ]
    title = f"Acceptance length by context: {result.set}"
    labels = Labels(title, "tokens before the anchor", AL)
    return bars([labelled[s] for s in sorted(labelled)], list(bins), groups, labels, line=1.0)


def _context_bar(name: str, bin: ContextBin | None) -> ChartBar:
    if bin is None:
        return ChartBar(None)
    return ChartBar(bin.al, f"{name}, {bin.label} tokens: AL {bin.al:.2f}, {bin.rounds} rounds")


def _cloud(evaluation: Evaluation, rows: Sequence[RequestRow], name: str) -> str:
    tokens = evaluation.settings.tokens
    policies = {side: evaluation.policy_name(side) for side in _speed_sides(evaluation)}
    points = [
        [
            (x, y, f"{prompt}, {policy}: {y:.2f}× at {x:.2f} tokens per round")
            for x, y, prompt in speedup_points(rows, side, tokens=tokens)
        ]
        for side, policy in policies.items()
    ]
    if not any(points):
        return ""  # nothing ran without speculation
    x_label = "tokens per round incl. bonus (AL), of each request"
    labels = Labels(f"Speedup against tokens per round: {name}", x_label, "speedup over AR")
    names = [f"{evaluation.drafter}, {policy}" for policy in policies.values()]
    return cloud(names, points, labels)
