"""`paceline profile`: where a step's time goes, beside what the roofline says it has to take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from paceline.bench.prompts import BenchPrompt, load_prompts
from paceline.cli import show
from paceline.cli.options import PROMPTS_HELP, Count, EngineCommand, OutputFile
from paceline.core import SamplingParams
from paceline.core.document_help import about
from paceline.core.documents import checked

if TYPE_CHECKING:
    from paceline.llm import LLM
    from paceline.profiling.run import ProfilePlan


@checked
class ProfileCommand(EngineCommand):
    """Show where a step's time goes, beside the roofline.

    Answers a prompt set without and with speculation while every step is recorded: scheduling,
    drafting, the forward by component, sampling, verifying, detokenising. Shows what each takes
    beside its bound, and the largest gap.
    """

    prompts: str = about(PROMPTS_HELP, "demo")
    batch: Count = about("requests at once", 1)
    steps: Count = about("decode steps to record in each pass", 100)
    trace: OutputFile | None = about("write a trace for ui.perfetto.dev or chrome://tracing", None)
    json: OutputFile | None = about("write the numbers as JSON", None)
    sampling: SamplingParams = SamplingParams(max_tokens=128, temperature=0.0, seed=0)

    def run(self) -> int:
        prompts = load_prompts(self.prompts)

        from paceline.profiling.run import ProfilePlan

        plan = ProfilePlan(self.sampling, self.speculation.stated, self.batch, self.steps)
        plan.check(self.engine)
        console = Console(highlight=False)
        self._profile(console, show.load(console, self.engine), prompts, plan)
        return 0

    def _profile(
        self, console: Console, llm: LLM, prompts: list[BenchPrompt], plan: ProfilePlan
    ) -> None:
        from paceline.evaluate.doctor import encoded
        from paceline.profiling import report
        from paceline.profiling.gaps import bounds_of, rows_of
        from paceline.profiling.run import drafter_network, peak_of, record, roof_of
        from paceline.profiling.served import record_served
        from paceline.profiling.trace import trace

        engine = llm.engine
        encoded_prompts = [encoded(llm.tokenizer, prompt.messages) for prompt in prompts]
        peak = peak_of(engine)
        passes = record(engine, encoded_prompts, plan)
        written = []
        for recorded in passes:
            steps, roof = recorded.steps(), roof_of(engine, recorded, peak)
            bounds = bounds_of(steps, engine.runner.network, drafter_network(engine), roof)
            rows = rows_of(steps, bounds)
            console.print(report.table(recorded.name, steps, rows))
            console.print(report.roof_line(roof), style="dim")
            console.print(report.steps_line(steps), style="dim")
            console.print(report.sentence(rows))
            written.append(report.as_json(recorded.name, steps, rows, roof))
        served = record_served(engine, encoded_prompts, plan)
        console.print(report.served_table(served))
        about_run = report.about(engine, plan)
        if self.json is not None:
            served_lines = report.served_lines(served)
            _write(self.json, {**about_run, "passes": written, served.name: served_lines})
        if self.trace is not None:
            recordings = {part.name: part.recording for part in (*passes, served)}
            _write(self.trace, trace(recordings, about_run))


def _write(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
