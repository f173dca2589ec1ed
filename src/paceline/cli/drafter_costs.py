"""`paceline drafter costs`: what drafting costs on this machine, for training with it in mind."""

from __future__ import annotations

import json
from typing import Annotated

from rich.table import Table

from paceline.cli import show
from paceline.cli.option import Only
from paceline.cli.options import DEFAULTS, MODEL_HELP, Positional
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.engine.config import EngineConfig

ENGINE = Only(("dtype", "device", "backend", "quantize", "threads", "draft_window"))


@checked
class CostsCommand:
    """Print how long rounds take that draft 1, 2, … tokens, in steps without drafts.

    Of one request on this machine, by the table that serving decides with. The last line is for
    `paceline train --mix expected_speedup=1`.
    """

    model: Positional = about(f"the target: {MODEL_HELP}")
    drafter: Positional = about(
        "folder or hub id, or the name of a model that a drafter is shipped for, with options as "
        "--drafter takes them"
    )
    json: bool = about("print the costs as JSON", False)
    engine: Annotated[EngineConfig, ENGINE] = DEFAULTS

    def run(self) -> int:
        """Print them. Raises InvalidRequest or ModelError as serving would."""
        from dataclasses import replace

        from paceline.drafters.base import longest_proposed
        from paceline.engine.build import build_engine

        config = replace(self.engine, model=self.model, drafter=(self.drafter,))
        engine = build_engine(config)
        ((name, drafter),) = engine.drafters.items()
        rounds = engine.drafting.costs.rounds(name, longest_proposed(drafter))
        if self.json:
            print(json.dumps({"round_costs": rounds}))
            return 0
        console = show.report_console()
        table = Table("drafted tokens", "time of a round ÷ a step without drafts", box=None)
        for count, cost in enumerate(rounds, 1):
            table.add_row(str(count), f"{cost:.3f}")
        console.print(table)
        costs = ",".join(f"{cost:.3f}" for cost in rounds)
        console.print(f"\n--round-costs {costs}", soft_wrap=True)
        return 0
