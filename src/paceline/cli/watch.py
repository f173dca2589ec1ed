"""`paceline drafter watch`: follow a run of training from any terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from pydantic import Strict
from rich.live import Live

from paceline.cli import show
from paceline.cli.option import Argument
from paceline.cli.training_view import training_view
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between


def _find_run(text: str) -> None:
    from paceline.training.trackers import LOG

    if not (Path(text) / LOG).is_file():
        expected = f"the folder of a run of `paceline train`, which has {LOG}"
        raise InvalidRequest("folder", text, expected)


RunFolder = Annotated[
    Path, Strict(False), Argument(positional=True, metavar="RUN", look_up=_find_run)
]


@checked
class WatchCommand:
    """Follow a run of training.

    Shows how far it is, loss, speed, and acceptance by set and position, until the run ends or
    Ctrl-C. Where no terminal is, it prints them once. It only reads: the run does not notice.
    """

    folder: RunFolder = about("folder of the run: --out of paceline train")
    every: Annotated[float, Between(0.1)] = about("seconds between two looks", 2.0)

    def run(self) -> int:
        from paceline.dataset.folder_lock import writer_of
        from paceline.training.trackers import read_log

        console = show.report_console()
        if not console.is_terminal:
            console.print(training_view(self.folder, read_log(self.folder)))
            return 0
        with Live(console=console, auto_refresh=False) as live:
            while True:
                running = writer_of(self.folder) is not None
                view = training_view(self.folder, read_log(self.folder))
                live.update(view, refresh=True)
                if not running:
                    break
                time.sleep(self.every)
        console.print("nobody trains in this folder now")
        return 0
