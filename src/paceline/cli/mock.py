"""`paceline mock`: what drafts of a given acceptance would buy, on the real engine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli import options
from paceline.core import InvalidRequest

if TYPE_CHECKING:
    from paceline.bench.mock.plan import Goal, MockPlan
    from paceline.roofline.device import Calibration, Hardware

DEFAULT_LENGTHS = "1,2,4,8"
HERE_ONLY = (
    "steps", "seed", "drafter_cost", "drafter_block", "drafter_config", "device", "backend",
    "threads", "hardware", "calibration", "json",
)  # fmt: skip
LAUNCH_ONLY = ("drafter", "tensor_parallel")


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "mock",
        help="measure what drafts of a given acceptance would buy, on random weights",
        description="Runs the real engine on random weights of a model's shape, accepts drafts by "
        "plan, and sets the measured speedup beside the predicted one. Nothing is downloaded, and "
        "what is said means nothing. Or writes the lines that do the same on vLLM or SGLang.",
    )
    parser.add_argument(
        "model",
        help="config.json, a folder that holds one, the name of a config that comes with Paceline "
        "or of the catalogue; with --launch whatever that engine takes",
    )
    accepted = parser.add_mutually_exclusive_group()
    accepted.add_argument(
        "--acceptance-length",
        type=floats,
        metavar="LENGTHS",
        help=f"AL incl. bonus, one or several (default: {DEFAULT_LENGTHS})",
    )
    accepted.add_argument(
        "--rates",
        type=floats,
        metavar="RATES",
        help="acceptance of each draft position once it is reached, as 0.8,0.7,0.7",
    )
    accepted.add_argument(
        "--profile",
        metavar="FILE",
        help='JSON: {"conditional": [...]}, {"unconditional": [...]}, or another form',
    )
    parser.add_argument(
        "--draft-lengths",
        type=whole_numbers,
        metavar="LENGTHS",
        help="tokens of a draft (default: 1,3,7,15, or as many as there are rates)",
    )
    parser.add_argument("--batch", type=whole_numbers, default=(1,), metavar="SIZES")
    parser.add_argument(
        "--context", type=int, default=512, help="tokens in the middle of a measurement (512)"
    )
    parser.add_argument("--steps", type=int, default=32, help="rounds that count (32)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (0)")
    _add_drafter_options(parser)
    options.add_device_options(parser)
    parser.add_argument(
        "--hardware",
        metavar="NAME|FILE",
        help="a device of the roofline's to predict with (default: this machine, measured)",
    )
    parser.add_argument(
        "--calibration", metavar="NAME|FILE", help="what `paceline roofline fit` wrote, or a preset"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    group = parser.add_argument_group("on another engine")
    group.add_argument(
        "--launch", choices=("vllm", "sglang"), help="print the lines for that engine; run nothing"
    )
    group.add_argument(
        "--drafter",
        metavar="KIND[:CHECKPOINT]",
        help="how it drafts, as dflash:FOLDER, eagle3:FOLDER, draft_model:FOLDER or mtp",
    )
    group.add_argument("--tensor-parallel", type=int, metavar="N", help="devices (default: 1)")
    parser.set_defaults(run=run, here_only={name: parser.get_default(name) for name in HERE_ONLY})


def _add_drafter_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("drafting, which takes its time")
    group.add_argument(
        "--drafter-cost",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the target's forward, by running so many of its layers (default: 0)",
    )
    group.add_argument(
        "--drafter-block", type=int, default=1, metavar="N", help="drafted tokens per such pass (1)"
    )
    group.add_argument(
        "--drafter-config",
        metavar="FILE",
        help="a drafter's config.json (DFlash, or a small model), run with random weights",
    )


def run(args: argparse.Namespace) -> int:
    from paceline.bench.mock.plan import LENGTHS, MockPlan

    goals, depth = _goals(args)
    plan = MockPlan(
        goals=goals,
        draft_lengths=args.draft_lengths or (LENGTHS if depth is None else (depth,)),
        batches=args.batch,
        context=args.context,
        steps=args.steps,
        seed=args.seed,
    )
    return _launch(args, plan) if args.launch else _measure(args, plan)


def _goals(args: argparse.Namespace) -> tuple[tuple[Goal, ...], int | None]:
    """Return the acceptances that are asked for, and the number of positions that have a rate."""
    from paceline.roofline.acceptance import Profile, acceptance_of

    if args.rates is not None:
        profile = Profile.of_conditional(args.rates)
        return (profile,), profile.depth
    if args.profile is None:
        return args.acceptance_length or floats(DEFAULT_LENGTHS), None
    try:
        stated = json.loads(Path(args.profile).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest("profile", args.profile, f"a JSON file ({error})") from error
    if not isinstance(stated, dict):
        raise InvalidRequest("profile", args.profile, "a file with one JSON object")
    acceptance = acceptance_of(stated)
    return (acceptance,), acceptance.depth


def _launch(args: argparse.Namespace, plan: MockPlan) -> int:
    from paceline.bench.mock.launch import LaunchDrafter, launch_lines

    for name, default in args.here_only.items():
        value = getattr(args, name)
        if value != default:
            raise InvalidRequest(name, str(value), "no value beside --launch, which runs nothing")
    if args.drafter is None:
        expected = "KIND[:CHECKPOINT] beside --launch: these engines always draft with one"
        raise InvalidRequest("drafter", None, expected)
    drafter, devices = LaunchDrafter.parse(args.drafter), args.tensor_parallel or 1
    lines = launch_lines(
        args.launch, plan, args.model, drafter, dtype=args.dtype, tensor_parallel=devices
    )
    print("\n".join(lines))
    return 0


def _measure(args: argparse.Namespace, plan: MockPlan) -> int:
    for name in LAUNCH_ONLY:
        if getattr(args, name) is not None:
            raise InvalidRequest(name, getattr(args, name), "no value without --launch")

    from rich.console import Console

    from paceline.bench.mock import report
    from paceline.bench.mock.measure import measure
    from paceline.bench.mock.predict import predict
    from paceline.bench.mock.setup import MockDrafting, build, read_target
    from paceline.bench.steps.machine import this_machine
    from paceline.cli import show
    from paceline.models.mocked import find_config

    path = args.drafter_config
    config = None if path is None else find_config(path, "drafter_config")
    drafting = MockDrafting(args.drafter_cost, args.drafter_block, config)
    calibration = None if args.calibration is None else calibration_of(args.calibration)
    device = None if args.hardware is None else hardware_of(args.hardware)
    target = read_target(args.model)
    settings = {name: getattr(args, name) for name in ("dtype", "device", "backend", "threads")}
    engine = build(target, plan, drafting, **settings)
    machine = device or this_machine(args.device, engine)
    with show.stderr_console().status("measuring"):
        measured = measure(engine, plan)
    predicted = predict(measured, target, drafting, engine, machine, calibration)
    console = Console(highlight=False)
    console.print(report.table(engine, plan, measured, predicted))
    for line in report.notes(predicted):
        console.print(line, style="dim")
    if args.json is not None:
        written = report.as_json(engine, plan, machine, measured, predicted)
        args.json.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    return 0


def hardware_of(text: str) -> Hardware:
    """Return a device by name, or from a JSON file."""
    from paceline.roofline.device import Hardware, hardware

    return Hardware.from_file(text, "hardware") if Path(text).is_file() else hardware(text)


def calibration_of(text: str) -> Calibration:
    """Return a preset by name, or what `paceline roofline fit` wrote."""
    from paceline.roofline.device import Calibration, preset

    return Calibration.from_file(text, "calibration") if Path(text).is_file() else preset(text)


def floats(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        message = f"{text!r} is no list of numbers; write it like 1,2.5,4"
        raise argparse.ArgumentTypeError(message) from None


def whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        message = f"{text!r} is no list of whole numbers; write it like 1,8,32"
        raise argparse.ArgumentTypeError(message) from None
