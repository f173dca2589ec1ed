"""The tables of a paired comparison and of a load run, for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import geometric_mean

from rich import box
from rich.table import Table

from paceline.bench.load.answers import DraftCounts, MeasuredAnswer
from paceline.bench.load.paired import Load, Pair
from paceline.bench.report.words import count, number


def pair_table(pairs: Sequence[Pair], title: str) -> Table:
    """Return a row per prompt, under the name of its kind; it fits a terminal of 80 columns."""
    numbers = ("tokens", "TTFT\noff", "\non", "TPOT\noff", "\non", "AL", "speedup")
    table = base_table(title, ("prompt",), numbers)
    table.add_column("same\ntext", no_wrap=True)
    for kind in _kinds(pairs):
        table.add_row(f"[italic]{kind}[/]")
        for pair in pairs:
            if pair.prompt.kind == kind:
                table.add_row(*_cells(pair))
        table.add_section()
    return table


def base_table(title: str, names: Sequence[str] = (), numbers: Sequence[str] = ()) -> Table:
    """Return an empty table with columns of names, and behind them columns of numbers."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _kinds(pairs: Sequence[Pair]) -> list[str]:
    return list(dict.fromkeys(pair.prompt.kind for pair in pairs))


def _cells(pair: Pair) -> list[str]:
    ttft, tpot = pair.ttft, pair.tpot
    style = "bold green" if pair.speedup >= 1.2 else "yellow" if pair.speedup < 0.97 else "default"
    return [
        f"  {pair.prompt.name}",
        f"{pair.counted_tokens}{'*' if pair.loops else ''}",
        *(f"{1000 * seconds:.0f}" for seconds in ttft),
        *(f"{1000 * seconds:.1f}" for seconds in tpot),
        number(pair.acceptance_length),
        f"[{style}]{pair.speedup:.2f}×[/]",
        "[green]yes[/]" if pair.same_text else "[bold red]no[/]",
    ]


def speedup_lines(pairs: Sequence[Pair]) -> list[str]:
    """Return a line with the speedup of each kind of prompt."""
    lines = []
    for kind in _kinds(pairs):
        of_kind = [pair.speedup for pair in pairs if pair.prompt.kind == kind]
        mean, prompts = geometric_mean(of_kind), count(len(of_kind), "prompt")
        lines.append(f"speedup, {kind}: {mean:.2f}× (geometric mean of {prompts})")
    return lines


def parts_tables(pairs: Sequence[Pair]) -> list[Table]:
    """Return the table of what each part of the drafter drafted, if it has several."""
    numbers = ("rounds", "accepted", "of drafted", "AL")
    table = base_table("Who drafted: the parts of the drafter", ("prompts", "drafted by"), numbers)
    for kind in _kinds(pairs):
        answers = [answer for pair in pairs if pair.prompt.kind == kind for answer in pair.on]
        for name in sorted({name for answer in answers for name in answer.parts}):
            part = DraftCounts.total(a.parts[name] for a in answers if name in a.parts)
            counts = (part.rounds, part.accepted, part.tokens)
            table.add_row(kind, name, *map(str, counts), number(part.acceptance_length))
    return [table] if table.row_count else []


def notes(pairs: Sequence[Pair]) -> list[str]:
    """Return lines that explain the columns."""
    lines = [
        "TTFT: ms to the first token. TPOT: ms per token after it. "
        "AL: tokens per drafted round, incl. bonus. Medians of the runs."
    ]
    if any(pair.loops for pair in pairs):
        lines.append("* TPOT stops counting where the text starts to repeat itself.")
    return lines


def undrafted(answers: Iterable[MeasuredAnswer]) -> list[str]:
    """Return a line that says so where answers with speculation drafted nothing; else none."""
    if DraftCounts.total(answer.drafted for answer in answers).rounds:
        return []
    return [
        "Nothing was drafted: off and on decode alike. The model has no drafter (--drafter none), "
        "or drafts did not pay."
    ]


def same_text_line(same: bool) -> str:
    return f"same text: {'yes' if same else 'no'}"


def load_table(off: Load, on: Load, title: str) -> Table:
    """Return a row without and one with speculation: throughput, TTFT, TPOT, AL and the ratio."""
    numbers = ("output tok/s", "TTFT", "TPOT", "AL", "throughput ÷ off")
    table = base_table(title, ("speculation",), numbers)
    for name, load in (("off", off), ("on", on)):
        table.add_row(
            name,
            f"{load.throughput:.1f}",
            f"{1000 * load.ttft:.0f} ms",
            f"{1000 * load.tpot:.1f} ms",
            number(load.acceptance_length),
            f"{load.throughput / off.throughput:.2f}×",
        )
    return table
