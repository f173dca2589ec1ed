"""The output of `paceline predict`: tables, launch lines, and a chart drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from paceline.cli.show import plain_table
from paceline.core import InvalidRequest, PacelineError
from paceline.roofline.scenario.answer import (
    CALIBRATED,
    CEILING,
    TIERS,
    BestByBatch,
    BestByContext,
    DrafterAnswer,
    Prediction,
    Tier,
)
from paceline.roofline.traffic import TrafficProfile, Worth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENGINES = {"paceline": "Paceline", "vllm": "vLLM", "sglang": "SGLang"}


def tables(answer: Prediction, *, by_batch: bool, components: bool) -> Iterator[Table | str]:
    """Yield what a prediction says; by context where it was asked for contexts."""
    yield from _head(answer)
    drafters = answer["drafters"]
    for drafter in drafters:
        yield f"\n[bold]{escape(drafter['name'])}: by draft length[/] (AL incl. bonus, times in ms)"
        yield curve_table(drafter)
        yield _best(drafter)
    if by_batch:
        views = {drafter["name"]: drafter["by_batch"] for drafter in drafters}
        yield "\n[bold]Best by batch: speedup at draft length[/]"
        yield optimum_table("batch", drafters[0]["by_batch"]["batch"], views)
    contexts = {d["name"]: view for d in drafters if (view := d["by_context"]) is not None}
    if contexts:
        yield "\n[bold]Best by context: speedup at draft length[/]"
        yield optimum_table("context", next(iter(contexts.values()))["context"], contexts)
    if components:
        yield "\n[bold]Where a step's time goes, ms[/]"
        yield components_table(answer)
    for note in answer["notes"]:
        yield f"[dim]note: {escape(note)}[/]"


def _head(answer: Prediction) -> Iterator[str]:
    model, device, stated = answer["model"], answer["hardware"], answer["scenario"]
    active = model["active_parameters"]
    sizes = f"{model['parameters'] / 1e9:.2f}B parameters, {active / 1e9:.2f}B active"
    many = f"{device['devices']} × " if device["devices"] > 1 else ""
    yield (
        f"[bold]{escape(model['name'])}[/] ({sizes}) on {many}{escape(device['name'])}: "
        f"batch {stated['batch']}, context {stated['context']}"
    )
    plain = {tier: answer["ar"][tier]["tpot_ms"] for tier in TIERS}
    yield (
        f"without speculation: {plain['ceiling']:.2f} ms a token at the ceiling, "
        f"{plain['calibrated']:.2f} ms calibrated ({escape(str(answer['calibration']['name']))})"
    )


def curve_table(drafter: DrafterAnswer) -> Table:
    """One row a draft length; `<` marks each tier's best."""
    table = plain_table("draft", "AL", "step\nceiling", "\ncalibr.", "TPOT\nceiling", "\ncalibr.",
                        "speedup\nceiling", "\ncalibr.", "break-\neven AL")  # fmt: skip
    for column in table.columns:
        column.no_wrap = True
    curve = drafter["curve"]
    for length in curve["draft_length"]:
        best = [drafter["optimum"][tier]["draft_length"] == length for tier in TIERS]
        cells = [str(length), f"{curve['acceptance_length'][length]:.2f}"]
        cells += [f"{curve[tier]['step_ms'][length]:.2f}" for tier in TIERS]
        cells += [f"{curve[tier]['tpot_ms'][length]:.2f}" for tier in TIERS]
        for tier, marked in zip(TIERS, best, strict=True):
            speedup = f"{curve[tier]['speedup'][length]:.2f}×"
            cells.append(f"[bold green]{speedup}<[/]" if marked else f"{speedup} ")
        cells.append(f"{curve['calibrated']['break_even_length'][length]:.2f}")
        table.add_row(*cells)
    return table


def _best(drafter: DrafterAnswer) -> str:
    best, top = drafter["optimum"]["calibrated"], drafter["optimum"]["ceiling"]
    name = escape(drafter["name"])
    if drafter["max_draft"] == 0:
        return f"[yellow]{name} is not worth it here[/]: no draft fits the memory"
    if best["draft_length"] == 0:
        return f"[yellow]{name} is not worth it here[/]: no draft length is faster than none"
    return (
        f"{name}: draft {best['draft_length']} for [bold]{best['speedup']:.2f}×[/] "
        f"({best['tokens_per_second_per_request']:.0f} tok/s a request), ceiling "
        f"{top['speedup']:.2f}× at {top['draft_length']}; it pays above an AL of "
        f"{best['break_even_length']:.2f}"
    )


def optimum_table(
    over: str, places: Sequence[int], views: Mapping[str, BestByBatch | BestByContext]
) -> Table:
    """Return the best draft length and its speedup at each place, for every drafter by name."""
    table = plain_table(over, *(f"{name}\n{tier}" for name in views for tier in TIERS))
    for index, place in enumerate(places):
        cells = [_optimum(view, tier, index) for view in views.values() for tier in TIERS]
        table.add_row(str(place), *cells)
    return table


def _optimum(view: BestByBatch | BestByContext, tier: Tier, index: int) -> str:
    speedup = view[tier]["speedup"][index]
    if speedup is None:
        return "does not fit"
    if not view["max_draft"][index]:
        return "no draft fits"
    return f"{speedup:.2f}× at {view[tier]['draft_length'][index]}"


def components_table(answer: Prediction) -> Table:
    """Milliseconds of a step: AR, and each drafter's best."""
    columns = {f"AR\n{tier}": answer["ar"][tier]["components"] for tier in TIERS}
    for drafter in answer["drafters"]:
        for tier in TIERS:
            best = drafter["optimum"][tier]
            title = f"{drafter['name']}, {best['draft_length']}\n{tier}"
            columns[title] = best["components"]
    table = plain_table("", *columns)
    for name in dict.fromkeys(name for column in columns.values() for name in column):
        cells = [f"{part[name]:.3f}" if name in part else "-" for part in columns.values()]
        table.add_row(name, *cells)
    totals = [f"{sum(part.values()):.3f}" for part in columns.values()]
    table.add_row("all", *totals, style="bold")
    return table


def traffic_table(traffic: TrafficProfile) -> Table:
    table = plain_table("", "mean", "p50", "p90", "p99")
    for name, spread in (("prompt", traffic.prompt_tokens), ("output", traffic.output_tokens)):
        cells = (spread.mean, spread.p50, spread.p90, spread.p99)
        table.add_row(f"{name} tokens", *(f"{cell:.0f}" for cell in cells))
    return table


def worth_lines(traffic: TrafficProfile, worths: Mapping[str, Worth]) -> Iterator[str]:
    share = traffic.decode_share
    decoding = "unknown" if share is None else f"{share:.0%}"
    yield (
        f"time in decode: {decoding}; concurrency {traffic.concurrency:.1f}, of which "
        f"{traffic.decoding:.1f} decode at once while any does; context {traffic.context:.0f}"
    )
    if traffic.acceptance_length is not None:
        length = f"{traffic.acceptance_length:.2f}"
        yield f"[yellow]this server speculates already[/], with an AL of {length} incl. bonus"
    for note in traffic.notes:
        yield f"[dim]note: {escape(note)}[/]"
    for name, worth in worths.items():
        gain = f"{worth.gain:.2f}× from end to end"
        bounded = not math.isinf(worth.limit)
        most = f" (at most {worth.limit:.2f}× with free decoding)" if bounded else ""
        if worth.worth_it:
            yield f"{escape(name)}: [bold]{gain}[/]{most}"
        else:
            reasons = escape("; ".join(worth.reasons))
            yield f"{escape(name)}: [bold yellow]not worth it[/], {gain}: {reasons}"


def flag_lines(answer: Prediction) -> Iterator[str]:
    """Launch lines of each drafter at its calibrated optimum."""
    for drafter in answer["drafters"]:
        length = drafter["optimum"]["calibrated"]["draft_length"]
        lines = {ENGINES[key]: line for key, line in drafter["flags"].items() if line}
        if lines:
            yield f"{drafter['name']} at draft length {length}:"
            for engine, line in lines.items():
                yield f"  {engine + ':':<10}{line}"


# -- the chart ------------------------------------------------------------------------------------

FORMATS = (".svg", ".png")
COLOURS = ("#2563ad", "#c2620e", "#2e8555")


def check_chart(path: Path) -> None:
    """Raise PacelineError where a chart of this name could not be drawn."""
    if path.suffix not in FORMATS:
        raise InvalidRequest("plot", str(path), "a name that ends in .svg or .png")
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


def _lengths(axes: Axes, drafter: DrafterAnswer, colour: str) -> None:
    curve, name = drafter["curve"], drafter["name"]
    lengths = curve["draft_length"]
    axes.plot(lengths, curve[CALIBRATED]["speedup"], color=colour, label=name)
    label = f"{name}, ceiling"
    axes.plot(lengths, curve[CEILING]["speedup"], color=colour, linestyle="--", label=label)
    for tier in (CEILING, CALIBRATED):
        best = drafter["optimum"][tier]
        axes.plot(best["draft_length"], best["speedup"], "o", color=colour)


def _batches(axes: Axes, drafter: DrafterAnswer, colour: str) -> None:
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
