"""How far predicted step times are from measured ones: fitted on a third, judged on the rest.

    paceline roofline measure MODEL --out POINTS          # for each model, on an idle machine
    python benchmarks/truth.py MODEL=POINTS [MODEL=POINTS ...] [--svg FILE]

MODEL is a folder, a config.json or a listed name; the file says what machine it was measured on.
"""

from __future__ import annotations

import argparse
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, table

from paceline.core import InvalidRequest
from paceline.roofline.architecture import read_architecture
from paceline.roofline.cost import Deployment
from paceline.roofline.device import Hardware
from paceline.roofline.fit import Case, Judged, fit_and_judge, read_points, summary

BAND = 0.15  # drawn about y = x
COLOURS = ("#2563ad", "#c2620e", "#2e8555", "#8a4fae")


def judged(word: str, share: Fraction) -> tuple[str, Judged]:
    """The name of MODEL=POINTS, and the fit."""
    named, _, path = word.partition("=")
    points = read_points(path)
    told = json.loads(Path(path).read_text("utf-8"))
    if not {"model", "hardware", "precision"} <= set(told):
        raise InvalidRequest("points", path, "what `paceline roofline measure` wrote")
    model = read_architecture(named, precision=told["precision"])
    case = Case(points, Deployment(model, Hardware.read(told["hardware"], "hardware")))
    return told["model"], fit_and_judge(case, share)


def row(name: str, found: Judged) -> tuple[Any, ...]:
    errors = np.abs(found.held_out_errors)
    middle, high = summary(found.held_out_errors)
    within = float(np.mean(errors <= BAND))
    return (name, len(found.points), len(found.fit.errors), percent(middle), percent(high),
            percent(within), percent(float(errors.max())), learnt(found))  # fmt: skip


def learnt(found: Judged) -> str:
    values = found.fit.calibration.model_dump()
    return ", ".join(
        f"{name.replace('_', ' ')} {values[name]:.3g}" for name in found.fit.deviations
    )


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def draw(found: list[tuple[str, Judged]], path: Path) -> None:
    """Predicted against measured, on logarithmic axes; hollow: the points fitted to."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    ends = []
    for colour, (name, one) in zip(COLOURS, found, strict=False):
        measured = np.array([1e3 * point.seconds for point in one.points])
        predicted = 1e3 * np.array(one.predicted)
        ends += [measured.min(), measured.max()]
        seen = np.array(one.seen)
        axes.plot(measured[~seen], predicted[~seen], ".", color=colour, label=name)
        axes.plot(measured[seen], predicted[seen], "o", color=colour, mfc="none", markersize=4)
    line = np.array([min(ends) * 0.8, max(ends) * 1.25])
    axes.plot(line, line, color="grey", linewidth=0.8)
    axes.fill_between(line, line * (1 - BAND), line * (1 + BAND), color="grey", alpha=0.15)
    axes.set(xscale="log", yscale="log", xlabel="measured step, ms", ylabel="predicted step, ms")
    axes.set_title("Steps predicted after a fit to a third of them (hollow); band: ±15%")
    axes.grid(alpha=0.25)
    axes.legend()
    with rc_context({"svg.hashsalt": "paceline"}):
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("points", nargs="+", metavar="MODEL=POINTS")
    parser.add_argument("--fit-on", type=Fraction, default=Fraction(1, 3), metavar="SHARE")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it, as .svg or .png")
    args = parser.parse_args()
    found = [judged(path, args.fit_on) for path in args.points]
    table(
        f"steps that the fit has not seen: predicted ÷ measured − 1 ({machine()})",
        ["model", "points", "fitted to", "median", "nine of ten below", "within 15%", "worst",
         "learned"],
        [row(*each) for each in found],
    )  # fmt: skip
    if args.svg is not None:
        draw(found, args.svg)


if __name__ == "__main__":
    main()
