"""`paceline roofline measure`: time a model's steps, for `paceline roofline fit` to learn from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from paceline.cli import options
from paceline.cli.mock import whole_numbers


def add_to(commands: Any) -> None:
    """Add the command to `commands`, the subcommands of `paceline roofline`."""
    parser = commands.add_parser(
        "measure",
        help="time a model's steps over batches, rows and contexts",
        description="Runs the engine on a model and times its steps, whole rounds of a running "
        "engine, over a grid of batch, rows per request and context. Writes the points that `fit` "
        "reads, and this machine's measured bandwidth and peak.",
    )
    options.add_model_argument(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="points as JSON")
    parser.add_argument(
        "--machine", type=Path, metavar="FILE", help="this machine as a device, for --hardware"
    )
    parser.add_argument("--batch", type=whole_numbers, metavar="SIZES", help="1,2,4,8,16,32")
    parser.add_argument(
        "--rows", type=whole_numbers, metavar="COUNTS", help="per request: 1,2,3,4,6,8,12,16"
    )
    parser.add_argument("--context", type=whole_numbers, metavar="TOKENS", help="64,512,1024")
    parser.add_argument("--rounds", type=int, default=5, help="over the grid, medians count (5)")
    options.add_device_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from paceline.bench import step_times
    from paceline.bench.this_machine import this_machine
    from paceline.cli import show
    from paceline.engine.build import build_engine
    from paceline.models.loader import load_model

    grid = step_times.Grid(
        batches=args.batch or step_times.BATCHES,
        rows=args.rows or step_times.ROWS,
        contexts=args.context or step_times.CONTEXTS,
        rounds=args.rounds,
    )
    settings = {name: getattr(args, name) for name in ("dtype", "device", "backend", "threads")}
    loaded = load_model(args.model)
    config = step_times.engine_config(grid, loaded.config, model=args.model, **settings)
    engine = build_engine(config, loaded)
    machine = this_machine(args.device, engine)
    with show.stderr_console().status("measuring") as status:
        points = step_times.measure_steps(
            engine, grid, lambda done, of: status.update(f"measuring, {done} of {of}")
        )
    written = step_times.as_json(engine, machine, points)
    if args.machine is not None:
        args.machine.write_text(json.dumps(machine.model_dump(), indent=1) + "\n", "utf-8")
    args.out.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    print(f"{args.out}: {len(points)} steps of {engine.model_name} ({engine.backend})")
    return 0
