"""`paceline bench`: speculation off against on, here or on a running server."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from paceline.bench.load import lossy
from paceline.bench.load.answers import InProcess
from paceline.bench.load.client import ChatClient, served_model
from paceline.bench.load.lossy import BUDGETS
from paceline.bench.load.paired import (
    Ask,
    Pair,
    compare,
    compare_load,
    same_text,
    write_arrivals,
)
from paceline.bench.prompts import BenchPrompt, load_prompts
from paceline.bench.report import tables
from paceline.bench.report.charts import Labels, scatter
from paceline.cli import options, show
from paceline.cli.options import DEFAULTS
from paceline.core import InvalidRequest


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure speculation off against on",
        description="Answers a prompt set without and with speculation, in turns, and shows TTFT, "
        "TPOT, AL, speedup and whether the text is the same. With --url it asks a running server. "
        "Exit code 1 when the text differs.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        help=f"what to load (default: {DEFAULTS.model}); with --url: "
        "the model's id there (default: the first it offers)",
    )
    parser.add_argument("--url", help="a running server, as http://127.0.0.1:8000")
    parser.add_argument("--api-key", help="with --url: its API key")
    parser.add_argument(
        "--prompts", default="demo", help="a shipped set or a JSON file (default: demo)"
    )
    parser.add_argument("--runs", type=int, default=5, help="paired runs per prompt (default: 5)")
    parser.add_argument(
        "--concurrency",
        type=int,
        default=1,
        help="with --url: requests in flight; above 1 the throughput of the whole is shown",
    )
    parser.add_argument(
        "--lossy",
        nargs="?",
        const=",".join(map(str, BUDGETS)),
        type=parse_budgets,
        metavar="BUDGETS",
        help="speed against measured quality under each of these lossy budgets, total variation "
        "per token (default of the option alone: %(const)s)",
    )
    parser.add_argument("--svg", type=Path, help="with --lossy: draw speedup over perplexity here")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write when each token of each answer arrived (JSONL)",
    )
    options.add_sampling_options(parser, max_tokens=128, temperature=0.0, seed=0)
    options.add_draft_length_option(parser)
    options.add_engine_options(parser)
    parser.set_defaults(run=run, off=False)


def run(args: argparse.Namespace) -> int:
    _check(args)
    prompts = load_prompts(args.prompts)
    speculative = options.speculative(args)
    if args.url is None:
        return _in_process(args, prompts, speculative)
    return asyncio.run(_over_http(args, prompts, speculative))


def _check(args: argparse.Namespace) -> None:
    for field in ("runs", "concurrency"):
        if getattr(args, field) < 1:
            raise InvalidRequest(field, getattr(args, field), "a whole number of at least 1")
    if args.svg is not None and args.lossy is None:
        raise InvalidRequest("svg", str(args.svg), "--lossy beside it, which it draws")
    if args.record is not None:
        if args.lossy is not None or args.concurrency > 1:
            raise InvalidRequest("record", str(args.record), "no --lossy, and --concurrency 1")
        if not args.record.parent.is_dir():
            raise InvalidRequest("record", str(args.record), "a file in a folder that exists")
    if args.lossy is not None and args.url is not None:
        raise InvalidRequest("lossy", list(args.lossy), "no --url: it looks into the engine")
    if args.url is None:
        if args.concurrency > 1:
            raise InvalidRequest("concurrency", args.concurrency, "1 without --url")
        if args.api_key is not None:
            raise InvalidRequest("api_key", args.api_key, "--url beside it")
        return
    for field, value in dataclasses.asdict(options.engine_config(args)).items():
        if field != "model" and value != getattr(DEFAULTS, field):
            raise InvalidRequest(field, value, "no engine option beside --url: the server has them")


def _in_process(args: argparse.Namespace, prompts: list[BenchPrompt], speculative: Any) -> int:
    config, params = options.engine_config(args), options.sampling_params(args)

    from paceline.engine.startup import start_up_rows
    from paceline.llm import LLM

    console = Console(highlight=False)
    llm = LLM(config=config)
    console.print(show.start_up_table(start_up_rows(llm.engine)))
    ask = InProcess(llm, params)
    if args.lossy is not None:
        return _show_lossy(console, llm, args, prompts, ask)
    pairs = asyncio.run(_compare(prompts, ask, args.runs, speculative))
    return _show_pairs(console, pairs, f"{config.model}, in process", args.record)


def _show_lossy(
    console: Console, llm: Any, args: argparse.Namespace, prompts: list[BenchPrompt], ask: InProcess
) -> int:
    params = options.sampling_params(args)
    lossless = lossy.answer_all(llm, params, prompts, 0.0)
    levels = []
    for epsilon in args.lossy:
        speculative = {"lossy": epsilon}
        if args.max_draft_len is not None:
            speculative["max_draft_len"] = args.max_draft_len
        pairs = asyncio.run(_compare(prompts, ask, args.runs, speculative))
        texts = lossy.answer_all(llm, params, prompts, epsilon)
        levels.append(lossy.level(epsilon, pairs, texts, lossless))
    title = f"{args.model or DEFAULTS.model}, T = {args.temperature:g}: speed and quality by budget"
    console.print(lossy.level_table(levels, title))
    if args.svg is not None:
        x_label = "perplexity of the text under the target ÷ lossless"
        drawing = scatter(lossy.points(levels), Labels(title, x_label, "speedup over AR"))
        args.svg.write_text(drawing, encoding="utf-8")
    return 0


def parse_budgets(text: str) -> tuple[float, ...]:
    """Reads budgets from 0 to 1: 0,0.02,0.1."""
    try:
        budgets = tuple(float(part) for part in text.split(","))
    except ValueError:
        budgets = ()
    if not budgets or not all(0 <= budget <= 1 for budget in budgets):
        message = f"{text!r} is no list of budgets from 0 to 1; write it like 0,0.02,0.1"
        raise argparse.ArgumentTypeError(message)
    return budgets


async def _over_http(args: argparse.Namespace, prompts: list[BenchPrompt], speculative: Any) -> int:
    console = Console(highlight=False)
    model = args.model or await served_model(args.url, args.api_key)
    client = _client(args, model)
    try:
        if args.concurrency == 1:
            pairs = await _compare(prompts, client, args.runs, speculative)
            return _show_pairs(console, pairs, f"{model} at {args.url}", args.record)
        await client(prompts[0], speculative)  # what is lazy is paid for before anything is timed
        load = {"runs": args.runs, "concurrency": args.concurrency}
        off, on = await compare_load(prompts, client, speculative=speculative, **load)
    finally:
        await client.close()
    title = f"{model} at {args.url}: {len(off.answers)} requests, {args.concurrency} at once"
    console.print(tables.load_table(off, on, title))
    same = same_text(off, on)
    console.print(tables.same_text_line(same))
    return 0 if same else 1


def _client(args: argparse.Namespace, model: str) -> ChatClient:
    params = options.sampling_params(args)  # refuses bad values before anything is sent
    names = ("top_k", "top_p", "min_p", "repetition_penalty")
    return ChatClient(
        args.url,
        model=model,
        api_key=args.api_key,
        max_tokens=args.max_tokens,
        temperature=params.temperature,
        seed=args.seed,
        extra={name: getattr(params, name) for name in names},
    )


async def _compare(
    prompts: Sequence[BenchPrompt], ask: Ask, runs: int, speculative: Any
) -> list[Pair]:
    await ask(prompts[0], speculative)  # the first request of a process pays for what is lazy
    with Progress(console=show.stderr_console(), transient=True) as progress:
        task = progress.add_task("measuring", total=runs * len(prompts))
        return await compare(
            prompts,
            ask,
            runs=runs,
            speculative=speculative,
            progress=lambda pair, run: progress.advance(task),
        )


def _show_pairs(console: Console, pairs: list[Pair], title: str, record: Path | None) -> int:
    if record is not None:
        write_arrivals(record, pairs)
    console.print(tables.pair_table(pairs, title))
    for line in tables.notes(pairs):
        console.print(line, style="dim")
    for table in tables.parts_tables(pairs):
        console.print(table)
    for line in tables.speedup_lines(pairs):
        console.print(line)
    same = all(pair.same_text for pair in pairs)
    console.print(tables.same_text_line(same))
    return 0 if same else 1
