"""The tables of `paceline drafters`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.bench.report.words import NOTHING, number, with_interval
from paceline.cli.show import plain_table

if TYPE_CHECKING:
    from paceline.autospec.store import CohortScore, DrafterStore, Transition

ALL_REQUESTS = "all requests"
SHOWN_DIGEST = 12
STYLES = {"live": "bold green", "canary": "yellow", "shadow": "yellow", "retired": "dim"}


def print_versions(store: DrafterStore) -> None:
    """Print the versions of a store, the newest first."""
    console = Console(highlight=False)
    versions = store.versions()
    if not versions:
        console.print(f"no versions in {store.folder}; `paceline drafters add` adds one")
        return
    words = ("name", "state", "serves", "drafter", "parent", "made")
    table = _whole(plain_table(*words[:4], "AL", *words[4:], left=words))
    for version in versions:
        spans = [score.al for score in store.scores(version.name)]
        table.add_row(
            version.name,
            Text(version.state, STYLES.get(version.state, "")),
            "\n".join(cohort or ALL_REQUESTS for cohort in store.serves(version.name)),
            version.kind or NOTHING,
            _span(spans),
            version.parent or NOTHING,
            _when(version.created).partition(" ")[0],
        )
    console.print(table)
    if any(store.scores(version.name) for version in versions):
        console.print("AL: acceptance length incl. bonus, over the cohorts", style="dim")


def print_version(told: dict[str, Any]) -> None:
    """Print all of a version, as describing.full_json() tells it."""
    console = Console(highlight=False)
    target = {part: value for part, value in told["target"].items() if value}
    digests = {part: value if part == "name" else value[:SHOWN_DIGEST]
               for part, value in target.items()}  # fmt: skip
    serves = ", ".join(cohort or ALL_REQUESTS for cohort in told["serves"])
    rows = {
        "version": told["name"],
        "state": told["state"] + (f", serves {serves}" if serves else ""),
        "spec": told["spec"] or NOTHING,
        "target": ", ".join(f"{part} {value}" for part, value in digests.items()) or "unknown",
        "made from": " ← ".join(told["lineage"]) or NOTHING,
        "made": _when(told["created"]),
        "files": told["fault"] or ("as they were added" if told["files"] else "none"),
        "note": told["note"] or NOTHING,
    }
    table = Table(show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows.items():
        table.add_row(label, Text(value, "red" if label == "files" and told["fault"] else ""))
    console.print(table)
    if told["scores"]:
        table = plain_table("cohort", "AL incl. bonus", "rounds", "measured on", left=LEFT)
        for score in told["scores"]:
            table.add_row(
                score["cohort"] or ALL_REQUESTS,
                with_interval(score["al"], (score["low"], score["high"])),
                str(score["rounds"]),
                score["source"],
            )
        console.print(table)
    table = _history_table(name=False)
    for step in told["history"]:
        _add_step(table, step["before"], step["after"], step)
    console.print(table)


def print_history(steps: Sequence[Transition]) -> None:
    """Print transitions, the earliest first."""
    table = _history_table(name=True)
    for step in steps:
        values = {"time": step.time, "actor": step.actor, "reason": step.reason,
                  "cohort": step.cohort}  # fmt: skip
        _add_step(table, step.before, step.after, values, step.name)
    Console(highlight=False).print(table)


def print_differences(
    one: str,
    other: str,
    rows: Sequence[tuple[str, object, object]],
    scores: Sequence[tuple[str, CohortScore | None, CohortScore | None]],
) -> None:
    """Print what differs between two versions, and their scores beside each other."""
    console = Console(highlight=False)
    table = plain_table("", one, other, left=("", one, other))
    for name, left, right in rows:
        table.add_row(name, _cell(left), _cell(right))
    console.print(table if rows else f"{one} and {other} are the same")
    if scores:
        table = plain_table("cohort", one, other, "", left=("cohort",))
        for cohort, left, right in scores:
            table.add_row(
                cohort or ALL_REQUESTS, _score(left), _score(right), _verdict(left, right)
            )
        console.print("AL incl. bonus, with 95% interval")
        console.print(table)


LEFT = ("cohort", "measured on")


def _history_table(*, name: bool) -> Table:
    words = (*(["version"] if name else []), "when", "what", "who", "why")
    return _whole(plain_table(*words, left=words))


def _whole(table: Table) -> Table:
    """Return a table whose long words, as labels of cohorts, are never cut short."""
    for column in table.columns:
        column.overflow = "fold"
    return table


def _add_step(
    table: Table, before: str | None, after: str, step: dict[str, Any], name: str | None = None
) -> None:
    what = after if before is None else f"{before} → {after}"
    cohort = f" for {step['cohort'] or ALL_REQUESTS}" if step["cohort"] is not None else ""
    cells = [_when(step["time"]), what + cohort, step["actor"], step["reason"]]
    table.add_row(*(Text(cell) for cell in ([] if name is None else [name]) + cells))


def _span(values: Sequence[float]) -> str:
    if not values:
        return NOTHING
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low}–{high}"


def _score(score: CohortScore | None) -> str:
    if score is None:
        return NOTHING
    return with_interval(score.al, (score.low, score.high))


def _verdict(one: CohortScore | None, other: CohortScore | None) -> str:
    """Say whether the intervals of two scores are apart."""
    if one is None or other is None:
        return ""
    if one.high < other.low:
        return "better"
    return "worse" if other.high < one.low else "no clear difference"


def _cell(value: object) -> Text:
    text = NOTHING if value in (None, "") else str(value)
    is_digest = len(text) == 64 and set(text) <= set("0123456789abcdef")
    return Text(text[:SHOWN_DIGEST] if is_digest else text)


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
