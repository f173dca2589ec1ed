"""`paceline drafter watch`: follow a run of training from any terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from pydantic import Strict
from rich.live import Live

from paceline.cli import show
from paceline.cli.option import Argument
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between
from paceline.dataset.run_log import LOG, run_state


def find_run(text: str) -> None:
    """Raise InvalidRequest where a folder holds no run."""
    if not (Path(text) / LOG).is_file():
        expected = f"the folder of a run of `paceline train` or `distil`, which has {LOG}"
        raise InvalidRequest("folder", text, expected)


RunFolder = Annotated[
    Path, Strict(False), Argument(positional=True, metavar="RUN", look_up=find_run)
]


@checked
class WatchCommand:
    """Follow a run of training.

    Shows how far it is, loss, speed, and acceptance by set and position, until the run ends or
    Ctrl-C. Without a terminal, it prints them once. It only reads the folder. The run must be one
    of this machine.
    """

    folder: RunFolder = about("folder of the run: --out of paceline train or distil")
    every: Annotated[float, Between(0.1)] = about("seconds between two looks", 2.0)

    def run(self) -> int:
        from paceline.cli.training_view import training_view  # here: `serve` needs find_run alone

        console = show.report_console()
        if not console.is_terminal:
            console.width = show.UNCUT
            console.print(training_view(run_state(self.folder)))
            return 0
        with Live(console=console, auto_refresh=False) as live:
            while True:
                run = run_state(self.folder)
                live.update(training_view(run), refresh=True)
                if not run["is_running"]:
                    break
                time.sleep(self.every)
        return 0
