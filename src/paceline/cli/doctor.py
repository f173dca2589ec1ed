"""`paceline doctor`: why a drafter accepts less at a running engine than it should."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.table import Table

from paceline.cli import show
from paceline.cli.option import Only
from paceline.cli.options import DEFAULTS, PROMPTS_HELP, Positional
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between
from paceline.engine.config import EngineConfig

if TYPE_CHECKING:
    from paceline.engines.doctor import ServedReport

BROKE_OFF = 3  # exit code where the engine fails on the way
MARKS = {True: "[green]ok[/]", False: "[red]WRONG[/]", None: "note"}


@checked
class ServedDoctorCommand:
    """Find out why a running engine accepts so few draft tokens.

    Asks a server (Paceline's or vLLM) for answers, loads its target and its DFlash drafter here,
    and compares what each of the engine's rounds accepted with what this drafter should accept in
    it. Says in a sentence each what is wrong, with what to do. Exit code 1 when something is, 3
    when the engine fails on the way.
    """

    url: Positional = about("the engine, as http://127.0.0.1:8000")
    model: Positional = about("its target: a folder or name that can be loaded here")
    drafter: Positional = about("its drafter: a folder or hub id")
    prompts: str = about(PROMPTS_HELP, "demo")
    max_tokens: Annotated[int, Between(8)] = about("tokens of each answer", 96)
    api_key: str | None = about("the server's API key", None)
    json: bool = about("print the report as JSON", False)
    engine: Annotated[EngineConfig, Only(("dtype", "device"))] = DEFAULTS

    def run(self) -> int:
        from paceline.engines.client import EngineError

        try:
            report = self._examine()
        except EngineError as error:
            print(f"paceline: error: {error}", file=sys.stderr)
            return BROKE_OFF
        if self.json:
            print(json.dumps(report.as_json(), indent=2))
        else:
            _print_report(report)
        return 0 if report.healthy else 1

    def _examine(self) -> ServedReport:
        from paceline.bench.prompts import load_prompts
        from paceline.engines import connect
        from paceline.engines.doctor import examine_served

        conversations = [prompt.messages for prompt in load_prompts(self.prompts)]
        client = connect(self.url, self.api_key)
        try:
            with show.progress() as progress:
                task = progress.add_task("looking for the engine", total=None)
                return examine_served(
                    client,
                    self.model,
                    self.drafter,
                    conversations,
                    self.max_tokens,
                    progress=lambda what: progress.update(task, description=what),
                    dtype=self.engine.dtype,
                    device=self.engine.device,
                )
        finally:
            client.close()


def _print_report(report: ServedReport) -> None:
    console = Console(highlight=False)
    table = Table(show_header=False, box=None)
    for finding in report.findings:
        table.add_row(MARKS[finding.ok], finding.name, finding.evidence)
    console.print(table)
    if report.positions:
        console.print(f"\naccepted by position, over {report.rounds} rounds", style="bold")
        console.print(_positions(report))
    console.print(f"\n{report.verdict}", style="bold", markup=False, soft_wrap=True)


def _positions(report: ServedReport) -> Table:
    shown = show.plain_table("position", "engine", "should be", "short", "95%", "z", left=())
    for each in report.positions:
        low, high = each.interval
        shown.add_row(
            str(each.position),
            f"{100 * each.achieved:.1f}%",
            f"{100 * each.expected:.1f}%",
            f"{100 * each.short:+.1f}%",
            f"{100 * low:+.1f} to {100 * high:+.1f}",
            f"{each.z:+.1f}",
        )
    return shown
