"""`paceline drafter costs`: what drafting costs on this machine, for training with it in mind."""

from __future__ import annotations

import json
from typing import Annotated

from rich.table import Table

from paceline.cli import show
from paceline.cli.option import Only
from paceline.cli.options import DEFAULTS, MODEL_HELP, Positional
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between
from paceline.engine.config import EngineConfig

ENGINE = Only(("dtype", "device", "backend", "quantize", "threads"))


@checked
class CostsCommand:
    """Print how long rounds take that draft 1, 2, … tokens, in steps without drafts.

    Of one request on this machine: answers a few prompts with drafts, one after the other, and
    reads what serving has learnt about its times. The last line is for `paceline train --mix
    expected_speedup=1`.
    """

    model: Positional = about(f"the target: {MODEL_HELP}")
    drafter: Positional = about(
        "folder or hub id, or the name of a model that a drafter is shipped for, with options as "
        "--drafter takes them"
    )
    max_tokens: Annotated[int, Between(8)] = about("tokens of each answer", 96)
    json: bool = about("print the costs as JSON", False)
    engine: Annotated[EngineConfig, ENGINE] = DEFAULTS

    def run(self) -> int:
        """Print them. Raises InvalidRequest or ModelError as serving would."""
        from dataclasses import replace

        from paceline.bench.prompts import load_prompts
        from paceline.cli.loading import open_model
        from paceline.core import SamplingParams
        from paceline.drafters.base import longest_proposed
        from paceline.evaluate.doctor import encoded

        config = replace(self.engine, model=self.model, drafter=self.drafter, draft_policy="fixed")
        if not config.drafter_specs:
            raise InvalidRequest("drafter", self.drafter, "a drafter")
        llm = open_model(config)
        params = SamplingParams(temperature=0, max_tokens=self.max_tokens)
        for prompt in load_prompts("demo"):
            llm.generate([encoded(llm.tokenizer, prompt.messages)], params)
        ((name, drafter),) = llm.engine.drafters.items()
        rounds = llm.engine.drafting.costs.rounds(name, longest_proposed(drafter))
        if self.json:
            print(json.dumps({"round_costs": rounds}))
            return 0
        table = Table("drafted tokens", "time of a round ÷ a step without drafts", box=None)
        for count, cost in enumerate(rounds, 1):
            table.add_row(str(count), f"{cost:.3f}")
        console = show.report_console()
        console.print(table)
        costs = ",".join(f"{cost:.3f}" for cost in rounds)
        console.print(f"\n--round-costs {costs}", soft_wrap=True)
        return 0
