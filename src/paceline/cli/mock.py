"""`paceline mock`: what drafts of a given acceptance would buy, on the real engine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from paceline.cli import options
from paceline.core import InvalidRequest

DEFAULT_LENGTHS = "1,2,4,8"
VLLM, SGLANG = "vllm", "sglang"
STEPS = 32
HERE_ONLY = {  # options of what is run here, and what they are unless given
    "steps": STEPS,
    "seed": 0,
    "drafter_cost": 0.0,
    "drafter_block": 1,
    "drafter_config": None,
    "device": "cpu",
    "backend": "auto",
    "threads": None,
    "hardware": None,
    "calibration": None,
    "json": None,
}


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
    parser.add_argument("--steps", type=int, default=STEPS, help="rounds that count (32)")
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
        "--launch", choices=(VLLM, SGLANG), help="print the lines for that engine; run nothing"
    )
    group.add_argument(
        "--drafter",
        metavar="KIND[:CHECKPOINT]",
        help="how it drafts, as dflash:FOLDER, eagle3:FOLDER, draft_model:FOLDER or mtp",
    )
    group.add_argument("--tensor-parallel", type=int, metavar="N", help="devices (default: 1)")
    parser.set_defaults(run=run)


def _add_drafter_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("drafting, really paid for")
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
    from paceline.bench.mock import LENGTHS, Asked, Plan

    asked, depth = _asked(args)
    lengths = args.draft_lengths or (LENGTHS if depth is None else (depth,))
    plan = Plan(
        asked=tuple(Asked(*each) for each in asked),
        draft_lengths=lengths,
        batches=args.batch,
        context=args.context,
        steps=args.steps,
        seed=args.seed,
    )
    return _launch(args, plan) if args.launch else _measure(args, plan)


def _asked(args: argparse.Namespace) -> tuple[list[tuple[Any, Any]], int | None]:
    """(AL, profile) of each acceptance, one of the two; and how many positions are known."""
    from paceline.roofline.acceptance import Profile, acceptance_of

    if args.rates is not None:
        profile = Profile.of_conditional(args.rates)
        return [(None, profile)], profile.depth
    if args.profile is not None:
        try:
            stated = json.loads(Path(args.profile).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidRequest("profile", args.profile, f"a JSON file ({error})") from error
        if not isinstance(stated, dict):
            raise InvalidRequest("profile", args.profile, "a file with one JSON object")
        found = acceptance_of(stated)
        return [(None, found)], found.depth
    return [(each, None) for each in args.acceptance_length or floats(DEFAULT_LENGTHS)], None


def _launch(args: argparse.Namespace, plan: Any) -> int:
    from paceline.bench.mock_launch import Drafter, launch_lines

    for name, default in HERE_ONLY.items():
        value = getattr(args, name)
        if value != default:
            raise InvalidRequest(name, str(value), "no value beside --launch, which runs nothing")
    if args.drafter is None:
        expected = "KIND[:CHECKPOINT] beside --launch: these engines always draft with one"
        raise InvalidRequest("drafter", None, expected)
    lines = launch_lines(
        args.launch,
        plan,
        args.model,
        Drafter.parse(args.drafter),
        dtype=args.dtype,
        tensor_parallel=args.tensor_parallel or 1,
    )
    print("\n".join(lines))
    return 0


def _measure(args: argparse.Namespace, plan: Any) -> int:
    for name in ("drafter", "tensor_parallel"):
        if getattr(args, name) is not None:
            raise InvalidRequest(name, getattr(args, name), "no value without --launch")

    from rich.console import Console

    from paceline.bench import mock_report
    from paceline.bench.mock import measure
    from paceline.bench.mock_predict import Predictions
    from paceline.bench.mock_setup import Drafting, build, read_target
    from paceline.bench.this_machine import this_machine
    from paceline.cli import show
    from paceline.models.mocked import find_config

    path = args.drafter_config
    config = None if path is None else find_config(path, "drafter_config")
    drafting = Drafting(args.drafter_cost, args.drafter_block, config)
    calibration = None if args.calibration is None else calibration_of(args.calibration)
    device = None if args.hardware is None else hardware_of(args.hardware)
    target = read_target(args.model)
    settings = {name: getattr(args, name) for name in ("dtype", "device", "backend", "threads")}
    engine = build(target, plan, drafting, **settings)
    machine = device or this_machine(args.device, engine)
    predictions = Predictions(target, drafting, engine, machine, calibration)
    with show.stderr_console().status("measuring"):
        measured = measure(engine, plan)
    predicted = [predictions.of(each) for each in measured]
    console = Console(highlight=False)
    console.print(mock_report.table(mock_report.title(engine, plan), measured, predicted))
    for line in mock_report.notes(predicted):
        console.print(line, style="dim")
    if args.json is not None:
        written = mock_report.as_json(engine, plan, machine, measured, predicted)
        args.json.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    return 0


def hardware_of(text: str) -> Any:
    """A device by name, or from a JSON file."""
    from paceline.roofline.device import Hardware, hardware

    return Hardware.from_file(text, "hardware") if Path(text).is_file() else hardware(text)


def calibration_of(text: str) -> Any:
    """A preset by name, or what `paceline roofline fit` wrote."""
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
