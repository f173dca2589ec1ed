"""`paceline profile`: where a step's time goes, beside what the roofline says it has to take."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.bench.prompts import BenchPrompt, load_prompts
from paceline.cli import options, show
from paceline.core import InvalidRequest


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "profile",
        help="show where a step's time goes, beside the roofline",
        description="Answers a prompt set without and with speculation while every step is "
        "recorded: scheduling, drafting, the forward by component, sampling, verifying, "
        "detokenising. Shows what each takes beside its bound, and the largest gap.",
    )
    options.add_model_argument(parser)
    parser.add_argument(
        "--prompts", default="demo", help="a shipped set or a JSON file (default: demo)"
    )
    parser.add_argument(
        "--batch", type=int, default=1, metavar="N", help="requests at once (default: 1)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=100,
        metavar="N",
        help="decode steps to record in each pass (default: 100)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write a trace for ui.perfetto.dev or chrome://tracing",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as JSON")
    options.add_sampling_options(parser, max_tokens=128, temperature=0.0, seed=0)
    options.add_speculation_options(parser)
    options.add_engine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    prompts = load_prompts(args.prompts)
    config, params = options.engine_config(args), options.sampling_params(args)
    for field in ("trace", "json"):
        _check_writable(field, getattr(args, field))

    from paceline.profiling.run import ProfilePlan

    plan = ProfilePlan(params, options.speculative(args), args.batch, args.steps)
    plan.check(config)

    from paceline.engine.startup import start_up_rows
    from paceline.llm import LLM

    console = Console(highlight=False)
    llm = LLM(config=config)
    console.print(show.start_up_table(start_up_rows(llm.engine)))
    _profile(console, llm, prompts, plan, args)
    return 0


def _profile(
    console: Console, llm: Any, prompts: list[BenchPrompt], plan: Any, args: argparse.Namespace
) -> None:
    from paceline.evaluate.doctor import encoded
    from paceline.profiling import report
    from paceline.profiling.gaps import bounds_of, rows_of
    from paceline.profiling.run import drafter_network, peak_of, record, roof_of
    from paceline.profiling.served import record_served
    from paceline.profiling.trace import trace

    engine = llm.engine
    encoded_prompts = [encoded(llm, prompt.messages) for prompt in prompts]
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
    about = report.about(engine, plan)
    if args.json is not None:
        served_lines = report.served_lines(served)
        _write(args.json, {**about, "passes": written, served.name: served_lines})
    if args.trace is not None:
        _write(args.trace, trace({p.name: p.recording for p in (*passes, served)}, about))


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _check_writable(field: str, file: Path | None) -> None:
    """Before the model: minutes of measuring should not end with a file that cannot be written."""
    if file is None:
        return
    usable = os.access(file if file.exists() else file.absolute().parent, os.W_OK)
    if file.is_dir() or not usable:
        raise InvalidRequest(field, str(file), "a file in a folder that exists and is writable")
