"""`paceline drafter find`: which drafters there are for a model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from paceline.cli import show
from paceline.cli.options import Positional, Strings
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.errors import InvalidRequest

SOURCES = {"shipped": "Paceline", "trained": "a run here", "published": "the hub"}


@checked
class FindCommand:
    """List drafters for a model: the one that is shipped, those of own training runs, and public
    ones as their authors list them. Nothing is downloaded.

    Exit code 1 where there is none.
    """

    target: Positional = about("the model: a name that `paceline list` shows, folder or hub id")
    runs: Strings = about("folders with training runs, repeatable", (), "runs, where it is there")
    json: bool = about("print the drafters as JSON", False)

    def run(self) -> int:
        """Print them, and the next command. Raises InvalidRequest for a folder without runs."""
        from paceline.drafters.found import find_drafters, target_name

        usual = Path("runs")
        runs = [Path(run) for run in self.runs] or ([usual] if usual.is_dir() else [])
        for folder in runs:
            if not folder.is_dir():
                raise InvalidRequest("runs", str(folder), "a folder with training runs")
        target = target_name(self.target)
        found = find_drafters(target, runs)
        if self.json:
            print(json.dumps([asdict(each) for each in found], indent=2))
            return 0 if found else 1
        console = show.report_console()
        if not found:
            console.print(f"No drafter is known for {target}.")
            console.print("To train one: paceline synth makes a set, paceline train the drafter.")
            return 1
        table = Table("drafter", "from", "note", box=None)
        for each in found:
            table.add_row(each.drafter, SOURCES[each.source], each.note)
        console.print(table)
        console.print(f"\nTo look at it: paceline drafter inspect {found[0].drafter}")
        return 0
