"""`paceline roofline fit`: an engine's efficiency and overheads, learned from measured steps."""

from __future__ import annotations

import argparse
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.cli import roofline_measure
from paceline.core import InvalidRequest


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "roofline",
        help="calibrate predictions with measured steps",
        description="Calibrate `paceline predict` to your engine.",
    )
    jobs = parser.add_subparsers(title="jobs", metavar="JOB", required=True)
    fit = jobs.add_parser(
        "fit",
        help="learn a calibration from measured steps",
        description="Fits efficiencies and overheads to measured (batch, rows, context, ms) steps, "
        "as few as the points can tell apart, and says how well they explain points that they were "
        "not fitted to.",
    )
    fit.add_argument(
        "points",
        nargs="+",
        type=Path,
        metavar="POINTS",
        help="CSV or JSON with batch, rows, context, ms; or results of vLLM's `bench serve`, "
        "SGLang's bench_serving or bench_one_batch",
    )
    fit.add_argument("--model", required=True, help="a listed name, a folder or a config.json")
    fit.add_argument("--hardware", required=True, metavar="NAME|FILE")
    fit.add_argument("--out", required=True, type=Path, help="the calibration (JSON)")
    fit.add_argument(
        "--fit-on",
        type=parse_share,
        default=Fraction(1),
        metavar="SHARE",
        help="fit to this share of the points, as 1/3, and judge by the others (default: all)",
    )
    fit.add_argument("--precision", metavar="SPEC", help="as for `paceline predict`")
    fit.add_argument("--tensor-parallel", type=int, default=1, metavar="N")
    fit.set_defaults(run=run)
    roofline_measure.add_to(jobs)


def parse_share(text: str) -> Fraction:
    """Read 1/3 or 0.5."""
    try:
        share = Fraction(text)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share; write it like 1/3")
    return share


def run(args: argparse.Namespace) -> int:
    from paceline.cli import roofline_show
    from paceline.cli.predict import read_device, read_precision
    from paceline.roofline.cost import Deployment, Options
    from paceline.roofline.device import Hardware, hardware
    from paceline.roofline.fit import Case, fit_and_judge, read_points
    from paceline.roofline.scenario.lines import architecture_of_word

    if not args.out.parent.is_dir():
        raise InvalidRequest("out", str(args.out), "a file in a folder that exists")
    model = architecture_of_word(args.model, read_precision(args.precision))
    stated = read_device(args.hardware)
    device = hardware(stated) if isinstance(stated, str) else Hardware.read(stated, "hardware")
    points = [point for path in args.points for point in read_points(path)]
    options = Options(tensor_parallel=args.tensor_parallel)
    judged = fit_and_judge(Case(points, Deployment(model, device, options)), args.fit_on)
    console = Console(highlight=False)
    console.print(roofline_show.title(judged), style="bold", markup=False)
    console.print(roofline_show.parameter_table(judged))
    console.print(roofline_show.residual_title(judged), style="bold")
    console.print(roofline_show.residual_table(judged))
    for line in roofline_show.lines(judged):
        console.print(line, soft_wrap=True)
    args.out.write_text(json.dumps(judged.as_json(), indent=2) + "\n", encoding="utf-8")
    console.print(str(args.out), markup=False, soft_wrap=True)
    return 0
