"""Draw a prediction with matplotlib, which the extra `plot` brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest, PacelineError
from paceline.roofline.scenario.answer import CALIBRATED, CEILING, DrafterAnswer, Prediction

FORMATS = (".svg", ".png")
COLOURS = ("#2563ad", "#c2620e", "#2e8555")


def check(path: Path) -> None:
    """Check the file before anything is computed. Raises where it could not be written."""
    if path.suffix not in FORMATS:
        raise InvalidRequest("plot", str(path), "a name that ends in .svg or .png")
    if not path.parent.is_dir():
        raise InvalidRequest("plot", str(path), "a file in a folder that exists")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        message = "--plot needs matplotlib: pip install 'paceline[plot]'"
        raise PacelineError(message) from None


def draw(answer: Prediction, path: Path) -> None:
    """Draw speedup by draft length, and the optimum by batch.

    Dashed lines are the ceiling, dots the optima.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    by_length, by_batch = figure.subplots(1, 2)
    for colour, drafter in zip(COLOURS, answer["drafters"], strict=False):
        _lengths(by_length, drafter, colour)
        _batches(by_batch, drafter, colour)
    stated = answer["scenario"]
    figure.suptitle(
        f"{answer['model']['name']} on {answer['hardware']['devices']} × "
        f"{answer['hardware']['name']}, context {stated['context']}"
    )
    by_length.set(xlabel="draft length", ylabel="speedup over AR")
    by_length.set_title(f"by draft length, batch {stated['batch']}")
    by_batch.set(xlabel="batch", xscale="log")
    by_batch.set_title("best draft length (numbers) by batch")
    for axes in (by_length, by_batch):
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.grid(alpha=0.25)
        axes.set_ylim(bottom=0)
    by_length.legend()
    with rc_context({"svg.hashsalt": "paceline"}):  # the same answer gives the same file
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=144, metadata=metadata)


def _lengths(axes: Any, drafter: DrafterAnswer, colour: str) -> None:
    curve, name = drafter["curve"], drafter["name"]
    lengths = curve["draft_length"]
    axes.plot(lengths, curve[CALIBRATED]["speedup"], color=colour, label=name)
    label = f"{name}, ceiling"
    axes.plot(lengths, curve[CEILING]["speedup"], color=colour, linestyle="--", label=label)
    for tier in (CEILING, CALIBRATED):
        best = drafter["optimum"][tier]
        axes.plot(best["draft_length"], best["speedup"], "o", color=colour)


def _batches(axes: Any, drafter: DrafterAnswer, colour: str) -> None:
    view = drafter["by_batch"]
    for tier, style in ((CALIBRATED, "-"), (CEILING, "--")):
        speedups = view[tier]["speedup"]
        fitting = [value for value in speedups if value is not None]
        axes.plot(view["batch"][: len(fitting)], fitting, style, color=colour)
    shown = zip(view["batch"], view[CALIBRATED]["speedup"], view[CALIBRATED]["draft_length"],
                strict=True)  # fmt: skip
    for batch, speedup, length in shown:
        if speedup is not None:
            axes.annotate(str(length), (batch, speedup), color=colour, fontsize=8,
                          textcoords="offset points", xytext=(0, 4), ha="center")  # fmt: skip
