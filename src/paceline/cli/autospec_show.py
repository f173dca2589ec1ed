"""`paceline autospec status` and `explain`: where cohorts stand, what was decided, and why not."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any

from rich.console import Console
from rich.text import Text

from paceline.cli.autospec_run import STORE_HELP, Store
from paceline.cli.option import Argument
from paceline.cli.show import plain_table
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between

JSON_HELP = "print it as JSON"
ALL_REQUESTS = "all requests"
NOTHING = "–"
Cohort = Annotated[str, Argument(positional=True, metavar="COHORT")]
Json = dict[str, Any]


@checked
class AutospecStatusCommand:
    """Show where each cohort stands: acceptance now and usually, its drafter, the change under way.

    AL, incl. the bonus token, is that of the last day; the change compares the days that are judged
    with what those usually have. All is as of the last turn of `paceline autospec run`.
    """

    store: Store = about(STORE_HELP)
    json: bool = about(JSON_HELP, False)

    def run(self) -> int:
        from paceline.autospec.loop.describing import status_json
        from paceline.autospec.store import DrafterStore

        with DrafterStore(self.store.expanduser()) as store:
            told = status_json(store)
        if self.json:
            print(json.dumps(told, indent=1))
        else:
            print_status(told)
        return 0


@checked
class AutospecExplainCommand:
    """Explain what was decided about a cohort, or about all: why, and why not something else.

    Decisions that last come first, with what they would gain and cost, in the currency of the
    policy; then changes, and decisions that have ended.
    """

    store: Store = about(STORE_HELP)
    cohort: Cohort | None = about("a cohort, as model|app|language|region", None, "all")
    limit: Annotated[int, Between(1, 1000)] = about(
        "most changes, and most decisions that have ended, the latest", 10
    )
    json: bool = about(JSON_HELP, False)

    def run(self) -> int:
        from paceline.autospec.loop.describing import explain_json
        from paceline.autospec.store import DrafterStore

        with DrafterStore(self.store.expanduser()) as store:
            told = explain_json(store, self.cohort, self.limit)
        if self.json:
            print(json.dumps(told, indent=1))
        else:
            print_explained(told)
        return 0


def print_status(told: Json) -> None:
    """Print the cohorts and the decisions that last, as describing.status_json() tells them."""
    console = Console(highlight=False)
    words = ("cohort", "live", "under way")
    table = plain_table("cohort", "AL", "usual", "change", *words[1:], left=words)
    for column in table.columns:
        column.overflow = "fold"
    for row in told["cohorts"]:
        live = row["live"] or NOTHING
        table.add_row(
            row["cohort"] or ALL_REQUESTS,
            _number(row.get("al")),
            _number(row.get("usual")),
            _change(row.get("change")),
            Text(live) if row["has_own"] or row["live"] is None else Text(live, "dim"),
            _under_way(row["under_way"]),
        )
    looked = NOTHING if told["looked"] is None else _when(told["looked"])
    console.print(table if told["cohorts"] else f"no cohorts in {told['store']} yet")
    runs = f"autospec runs: {told['runs']}" if told["runs"] else "autospec does not run"
    console.print(Text(f"{runs}; last look: {looked}"), style="dim", soft_wrap=True)
    for decision in told["decisions"]:
        console.print(Text(_head(decision)), soft_wrap=True)
    if told["decisions"]:
        console.print(Text("why, and why not: paceline autospec explain"), style="dim")


def print_explained(told: Json) -> None:
    """Print decisions and changes, as describing.explain_json() tells them."""
    console = Console(highlight=False)
    if not any(told[part] for part in ("decisions", "changes", "earlier")):
        console.print("nothing was decided yet: `paceline autospec run` decides")
    _print_decisions(console, "decided now", told["decisions"])
    if told["changes"]:
        console.print("changes, the latest first", style="bold")
    for change in told["changes"]:
        for line in change_lines(change):
            console.print(Text(line), soft_wrap=True)
    _print_decisions(console, "decided before, the latest first", told["earlier"])


def change_lines(change: Json) -> list[str]:
    """Return a change in lines: what, when, what its score said, what the canary lacks, and how it
    ended."""
    share = f", {change['percent']:g}% of the requests" if change["percent"] else ""
    lines = [
        f"  {change['id']}  {change['version']} for {change['cohort'] or ALL_REQUESTS}, in place "
        f"of {change['replaces']} ({change['origin']}): {change['stage']}{share}",
        f"       begun {_when(change['created'])}, last step {_when(change['changed'])}",
    ]
    lacks = change["hold"] if change["ended"] is None else []
    told = {"score": [change["score"]], "lacks": lacks, "end": [change["reason"]]}
    for name, texts in told.items():
        lines += [f"       {name}: {text}" for text in texts if text]
    return lines


def _print_decisions(console: Console, title: str, decisions: Sequence[Json]) -> None:
    if decisions:
        console.print(title, style="bold")
    for decision in decisions:
        console.print(Text(f"  {_head(decision)}"), soft_wrap=True)
        for name, texts in (("why", decision["why"]), ("why not", decision["why_not"])):
            for text in texts:
                console.print(Text(f"       {name}: {text}"), soft_wrap=True)
        if decision["gain"] is not None or decision["cost"] is not None:
            worth = f"gain {_number(decision['gain'])}, cost {_number(decision['cost'])}"
            console.print(Text(f"       worth: {worth}"))


def _head(decision: Json) -> str:
    """Return what a decision is, about whom, and since when."""
    where = ", ".join(cohort or ALL_REQUESTS for cohort in decision["cohorts"])
    until = "" if decision["ended"] is None else f" until {_when(decision['ended'])}"
    head = f"{decision['kind']}: {decision['action']}"
    return f"{head}{f' ({where})' if where else ''}, since {_when(decision['noted'])}{until}"


def _under_way(change: Json | None) -> Text:
    if change is None:
        return Text("")
    share = f" {change['percent']:g}%" if change["percent"] else ""
    return Text(f"{change['version']}: {change['stage']}{share}")


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def _change(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.1%}"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
