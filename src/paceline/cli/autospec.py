"""`paceline autospec`: what keeps drafters good while traffic changes."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.simulate.world import SimulationPlan
from paceline.cli.options import File
from paceline.cli.show import plain_table
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between

if TYPE_CHECKING:
    from paceline.autospec.simulate.run import SimulatedRun
    from paceline.autospec.simulate.summary import SimulationSummary

SEEDS = 2**32


@checked
class SimulateCommand:
    """Try a policy on simulated traffic.

    Draws weeks of requests of two hemispheres, with their days, nights and weekends, and one thing
    that happens. Prints what the policy decides and when, and how often ADWIN on the raw stream of
    all requests would have fired. Nothing is trained and no server is asked.
    """

    plan: SimulationPlan = SimulationPlan()
    policy: File | None = about("policy file (YAML)", None, "the defaults")
    runs: Annotated[int, Between(1, 100_000)] = about("runs, each with its own traffic", 20)
    seed: Annotated[int, Between(0, SEEDS - 1)] | None = about(
        "seed of the first run", None, "drawn"
    )
    no_control: bool = about("leave ADWIN on the raw stream out: runs take half the time", False)
    json: bool = about("print it as JSON", False)

    def run(self) -> int:
        from paceline.autospec.simulate.run import simulate
        from paceline.autospec.simulate.summary import summarise

        policy = read_policy(self.policy)
        seed = secrets.randbelow(SEEDS) if self.seed is None else self.seed
        seeds = [(seed + index) % SEEDS for index in range(self.runs)]
        control = not self.no_control
        runs = simulate(self.plan, policy, seeds, control=control)
        summary = summarise(runs, self.plan.days, control=control)
        if self.json:
            written = [run.as_json() for run in runs]
            print(
                json.dumps({"seed": seed, "summary": summary.as_json(), "runs": written}, indent=1)
            )
            return 0
        console = Console(highlight=False)
        console.print(f"[bold]{self.plan.event}: the first of {self.runs} runs (seed {seed})[/]")
        console.print(timeline(runs[0]))
        console.print(f"[bold]all {self.runs} runs of {self.plan.days} days[/]")
        console.print(summary_table(summary))
        return 0


def read_policy(path: Path | None) -> AutospecPolicy:
    """Return the policy of a file, or the defaults."""
    return AutospecPolicy() if path is None else AutospecPolicy.from_yaml(path)


def timeline(run: SimulatedRun) -> Table:
    """Return what a run's policy found, by day. What it said the day before too is left out."""
    rows = [(float(day), report.sentences()) for day, report in run.decisions]
    if run.event is not None:
        rows.append((run.event, "This is when it happens."))
    table = plain_table("day", "what", left=["what"])
    for day, text in sorted(rows, key=lambda row: row[0]):
        table.add_row(f"{day:.1f}", Text(text))
    return table


def summary_table(summary: SimulationSummary) -> Table:
    """Return the figures of all runs."""
    table = plain_table("", "runs", left=[""])
    for count, runs in summary.retrains.items():
        table.add_row(f"decided on {count} training{'s' if count != 1 else ''}", str(runs))
    if summary.too_early:
        table.add_row("a training before it happened", str(summary.too_early))
    for kind, runs in summary.found.items():
        table.add_row(f"reported: {kind}", str(runs))
    if summary.median_delay is not None and summary.longest_delay is not None:
        table.add_row("days until the training: median", f"{summary.median_delay:.1f}")
        table.add_row("and longest", f"{summary.longest_delay:.1f}")
    if summary.control_a_day is not None:
        table.add_row(
            "control: alarms a day of ADWIN on all requests", f"{summary.control_a_day:.2f}"
        )
    return table
