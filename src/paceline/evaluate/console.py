"""An evaluation in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from paceline.bench.report.tables import base_table
from paceline.evaluate import words
from paceline.evaluate.measure import DRAFTER, NGRAM, SUFFIX


def overview(result: Mapping[str, Any]) -> Table:
    """A row for each set and temperature; fits a terminal of 80 columns."""
    made = base_table(f"{result['drafter']} for {result['model']}")
    made.add_column("set", overflow="fold", min_width=10)
    for name in ("T", "AL incl.\nbonus", "AL\nngram", "suffix\nwarmed", "speedup\nover AR",
                 "full", "full\n÷ AL", "same\ntext"):  # fmt: skip
        made.add_column(name, justify="right", no_wrap=True)
    for one in result["results"]:
        full = one["speed"][words.BLOCK]
        made.add_row(
            f"{one['set']}\n[dim]{one['role']}[/]",
            f"{one['temperature']:g}",
            _two_lines(words.al(one)),
            words.number(one["acceptance"][NGRAM]["al"]),
            words.number(one["acceptance"][SUFFIX]["al"]),
            _two_lines(words.speedup(one)),
            words.number(full["speedup"], "×"),
            words.number(full["speedup_per_token"]),
            "[green]yes[/]" if one["same_text"] else "[bold red]NO[/]",
        )
    return made


def _two_lines(number: str) -> str:
    """The interval below the number."""
    value, _, interval = number.partition(" ")
    return f"{value}\n[dim]{interval.strip('()')}[/]"


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """By position and by context, and what has to be known about the sets."""
    for one in result["results"]:
        found = one["acceptance"][DRAFTER]
        where = f"{one['set']}, T = {one['temperature']:g}"
        shares = " ".join(words.percent(each["share"]) for each in found["positions"])
        yield f"{where}: accepted by position {shares}"
        yield "  AL by context " + ", ".join(
            f"{words.context(each)}: {each['al']:.2f} ({each['rounds']} rounds)"
            for each in found["contexts"]
        )
        if (bound := words.bound(one)) is not None:
            yield f"  {bound}"
        if one["looping"]:
            yield f"  {one['looping']} of {one['requests']} answers loop and are cut there"
        if one["left_out"]:
            yield f"  {one['left_out']} prompts are longer than the context allows: left out"
