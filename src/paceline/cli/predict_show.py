"""The output of `paceline predict`: tables, launch lines, and a chart drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rich.markup import escape
from rich.table import Table

from paceline.cli.show import plain_table
from paceline.core import InvalidRequest
from paceline.core.packages import MissingPackage
from paceline.roofline.scenario.answer import (
    CALIBRATED,
    ROOFLINE,
    TIERS,
    BestByBatch,
    BestByContext,
    DrafterAnswer,
    DraftNumbers,
    Evidence,
    Prediction,
    Tier,
)
from paceline.roofline.traffic import TrafficProfile, Worth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENGINES = {"paceline": "Paceline", "vllm": "vLLM", "sglang": "SGLang"}
NOT_FITTING = "does not fit"
FITTING = {"no draft": "no draft fits", "nothing": NOT_FITTING}


def tables(answer: Prediction, *, by_batch: bool, components: bool) -> Iterator[Table | str]:
    """Yield what a prediction says; by context where it was asked for contexts."""
    yield from _head(answer)
    drafters = answer["drafters"]
    for drafter in drafters:
        yield (
            f"\n[bold]{escape(drafter['name'])}: by draft length[/] "
            "(AL incl. bonus, tok/s of a request, steps in ms)"
        )
        yield curve_table(drafter)
        if not all(drafter["curve"]["fits"]):
            last = drafter["curve"]["draft_length"][-1]
            yield f"drafts of {drafter['max_draft'] + 1} to {last} tokens do not fit the memory"
        yield _best(drafter)
        if drafter["evidence"] != answer["evidence"]:
            yield escape(f"band of {drafter['name']}: {drafter['evidence']['text']}")
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
    yield from _published(answer)
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
    rates = {tier: answer["ar"][tier]["tokens_per_second_per_request"] for tier in TIERS}
    yield (
        f"without speculation: {rates[CALIBRATED]:.0f} tok/s a request"
        f"{_range(answer['evidence'], rates[CALIBRATED])}, at most {rates[ROOFLINE]:.0f} by the "
        "roofline"
    )
    preset = escape(str(answer["calibration"]["name"]))
    yield f"calibrated with {preset}: {escape(answer['evidence']['text'])}"


def _range(evidence: Evidence, value: float, unit: str = "") -> str:
    """Return what is measured where `value` is predicted, as far as evidence tells."""
    low, high = evidence["low"], evidence["high"]
    if low is None or high is None:
        return ""
    digits = 0 if value >= 10 else 2
    return f" ({low * value:.{digits}f} to {high * value:.{digits}f}{unit})"


def curve_table(drafter: DrafterAnswer) -> Table:
    """One row for each draft length that fits; `<` marks each tier's best."""
    table = plain_table("draft", "AL", "tok/s\nroofline", "\ncalibr.", "step\nroofline",
                        "\ncalibr.", "speedup\nroofline", "\ncalibr.",
                        "break-\neven AL")  # fmt: skip
    for column in table.columns:
        column.no_wrap = True
    curve, optimum = drafter["curve"], drafter["optimum"]
    for length, fits in zip(curve["draft_length"], curve["fits"], strict=True):
        if not fits:
            break  # longer ones do not either
        cells = [str(length), f"{curve['acceptance_length'][length]:.2f}"]
        for name, form in (("tokens_per_second_per_request", ".0f"), ("step_ms", ".2f")):
            for tier in TIERS:
                cells.append(f"{_number(curve[tier], name, length):{form}}")
        for tier in TIERS:
            speedup = f"{_number(curve[tier], 'speedup', length):.2f}×"
            marked = optimum is not None and optimum[tier]["draft_length"] == length
            cells.append(f"[bold green]{speedup}<[/]" if marked else f"{speedup} ")
        cells.append(f"{_number(curve[CALIBRATED], 'break_even_length', length):.2f}")
        table.add_row(*cells)
    return table


def _number(numbers: DraftNumbers, name: str, length: int) -> float:
    return cast("dict[str, list[float]]", numbers)[name][length]


def _best(drafter: DrafterAnswer) -> str:
    name, optimum = escape(drafter["name"]), drafter["optimum"]
    if optimum is None:
        return f"[yellow]{name}: no draft fits the memory[/] beside the requests"
    best, top = optimum[CALIBRATED], optimum[ROOFLINE]
    if best["draft_length"] == 0:
        return f"[yellow]{name} is not worth it here[/]: no draft length is faster than none"
    rate = best["tokens_per_second_per_request"]
    return (
        f"{name}: draft {best['draft_length']} for [bold]{rate:.0f} tok/s a request[/]"
        f"{_range(drafter['evidence'], rate)}, {best['speedup']:.2f}×"
        f"{_range(drafter['evidence'], best['speedup'], '×')}; at most "
        f"{top['tokens_per_second_per_request']:.0f} tok/s by the roofline; it pays above an AL "
        f"of {best['break_even_length']:.2f}"
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
    fits = view["fits"][index]
    if fits in FITTING:
        return FITTING[fits]
    return f"{view[tier]['speedup'][index]:.2f}× at {view[tier]['draft_length'][index]}"


def components_table(answer: Prediction) -> Table:
    """Milliseconds of a step: AR, and each drafter's best."""
    columns = {f"AR\n{tier}": answer["ar"][tier]["components"] for tier in TIERS}
    for drafter in answer["drafters"]:
        if (optimum := drafter["optimum"]) is None:
            continue
        for tier in TIERS:
            best = optimum[tier]
            title = f"{drafter['name']}, {best['draft_length']}\n{tier}"
            columns[title] = best["components"]
    table = plain_table("", *columns)
    table.columns[0].no_wrap = True
    table.columns[0].min_width = 14
    for name in dict.fromkeys(name for column in columns.values() for name in column):
        cells = [f"{part[name]:.3f}" if name in part else "-" for part in columns.values()]
        table.add_row(name, *cells)
    totals = [f"{sum(part.values()):.3f}" for part in columns.values()]
    table.add_row("all", *totals, style="bold")
    return table


def _published(answer: Prediction) -> Iterator[Table | str]:
    """Yield the published measurements of the same model, devices and batch."""
    batch = answer["scenario"]["batch"]
    points = [point for point in answer["published"] if point["batch"] == batch]
    if not points:
        return
    yield f"\n[bold]Published measurements, batch {batch}[/] (tok/s of a request)"
    table = plain_table("drafter", "draft", "AL", "tok/s", "speedup", "source",
                        left=["drafter", "source"])  # fmt: skip
    for point in points:
        rate, speedup = point["tokens_per_second"], point["speedup"]
        table.add_row(
            point["kind"] or "none",
            str(point["draft_length"]),
            f"{point['acceptance_length']:.2f}",
            "-" if rate is None else f"{rate / point['batch']:.0f}",
            "-" if speedup is None else f"{speedup:.2f}×",
            f"{point['source'].partition(';')[0]}, {point['set']}",
        )
    yield table


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
        f"time in decode: {decoding}; {traffic.concurrency:.1f} requests at once "
        f"(while any decodes, {traffic.decoding:.1f} decode together); "
        f"context {traffic.context:.0f}"
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
    """Launch lines of each drafter at its calibrated optimum, or what an engine lacks for one."""
    for drafter in answer["drafters"]:
        if not any(line["command"] for line in drafter["flags"].values()):
            continue
        optimum = drafter["optimum"]
        length = optimum[CALIBRATED]["draft_length"] if optimum else 0
        yield f"{drafter['name']} at draft length {length}:"
        for key, line in drafter["flags"].items():
            shown = line["command"] or f"none: {line['missing']}"
            yield f"  {ENGINES[key] + ':':<10}{shown}"


# -- the chart ------------------------------------------------------------------------------------

FORMATS = (".svg", ".png")
COLOURS = ("#2563ad", "#c2620e", "#2e8555")
MUTED = "#777777"


def check_chart(path: Path) -> None:
    """Raise InvalidRequest or MissingPackage where a chart of this name could not be drawn."""
    if path.suffix not in FORMATS:
        raise InvalidRequest("plot", str(path), "a name that ends in .svg or .png")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingPackage("--plot needs", "matplotlib") from None


def draw(answer: Prediction, path: Path) -> None:
    """Draw tokens per second by draft length, and the best speedup by batch.

    Dashed lines are the roofline, shaded the bands of published evidence, grey dots published
    measurements. What does not fit the memory is hatched, and has no line.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    by_length, by_batch = figure.subplots(1, 2)
    for colour, drafter in zip(COLOURS, answer["drafters"], strict=False):
        _lengths(by_length, drafter, colour)
        _batches(by_batch, drafter, colour)
    _dots(by_length, answer)
    _hatch(by_length, answer["drafters"])
    stated = answer["scenario"]
    figure.suptitle(
        f"{answer['model']['name']} on {answer['hardware']['devices']} × "
        f"{answer['hardware']['name']}, context {stated['context']}"
    )
    by_length.set(xlabel="draft length", ylabel="tok/s of a request")
    by_length.set_title(f"by draft length, batch {stated['batch']}")
    by_batch.set(xlabel="batch", xscale="log", ylabel="speedup over AR")
    by_batch.set_title("best draft length (numbers) by batch")
    by_batch.axhline(1, color="grey", linewidth=0.8)
    for axes in (by_length, by_batch):
        axes.grid(alpha=0.25)
        axes.set_ylim(bottom=0)
        if axes.get_legend_handles_labels()[1]:
            axes.legend()
    with rc_context({"svg.hashsalt": "paceline"}):  # the same answer gives the same file
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=144, metadata=metadata)


def _lengths(axes: Axes, drafter: DrafterAnswer, colour: str) -> None:
    curve, name, evidence = drafter["curve"], drafter["name"], drafter["evidence"]
    lengths = [n for n, fits in zip(curve["draft_length"], curve["fits"], strict=True) if fits]
    rates = {
        tier: [_number(curve[tier], "tokens_per_second_per_request", n) for n in lengths]
        for tier in TIERS
    }
    axes.plot(lengths, rates[CALIBRATED], color=colour, label=name)
    axes.plot(lengths, rates[ROOFLINE], color=colour, linestyle="--", label=f"{name}, roofline")
    if (low := evidence["low"]) is not None and (high := evidence["high"]) is not None:
        least, most = ([share * rate for rate in rates[CALIBRATED]] for share in (low, high))
        axes.fill_between(lengths, least, most, color=colour, alpha=0.12, linewidth=0)
    if drafter["optimum"] is not None:
        for tier in TIERS:
            best = drafter["optimum"][tier]
            rate = best["tokens_per_second_per_request"]
            axes.plot(best["draft_length"], rate, "o", color=colour)


def _dots(axes: Axes, answer: Prediction) -> None:
    batch = answer["scenario"]["batch"]
    dots = [
        (point["draft_length"], rate / batch)
        for point in answer["published"]
        if point["batch"] == batch and (rate := point["tokens_per_second"]) is not None
    ]
    if dots:
        axes.plot(*zip(*dots, strict=True), "o", color=MUTED, markersize=5, label="published")


def _hatch(axes: Axes, drafters: Sequence[DrafterAnswer]) -> None:
    """Hatch the draft lengths that fit with no drafter."""
    longest = max(drafter["max_draft"] for drafter in drafters)
    asked = max(drafter["curve"]["draft_length"][-1] for drafter in drafters)
    if longest < asked:
        span = (longest + 0.5, asked + 0.5)
        axes.axvspan(*span, facecolor="none", edgecolor=MUTED, hatch="///", label=NOT_FITTING)


def _batches(axes: Axes, drafter: DrafterAnswer, colour: str) -> None:
    view = drafter["by_batch"]
    for tier, style in ((CALIBRATED, "-"), (ROOFLINE, "--")):
        speedups = [math.nan if value is None else value for value in view[tier]["speedup"]]
        axes.plot(view["batch"], speedups, style, color=colour)
    best = view[CALIBRATED]
    shown = zip(view["batch"], best["speedup"], best["draft_length"], view["fits"], strict=True)
    for batch, speedup, length, fits in shown:
        if speedup is not None:
            axes.annotate(str(length), (batch, speedup), color=colour, fontsize=8,
                          textcoords="offset points", xytext=(0, 4), ha="center")  # fmt: skip
        elif fits != "drafts":
            axes.plot(batch, 0.08, "x", color=MUTED, clip_on=False)
            axes.annotate(FITTING[fits], (batch, 0.08), color=MUTED, fontsize=7, rotation=90,
                          textcoords="offset points", xytext=(0, 8), ha="center")  # fmt: skip
