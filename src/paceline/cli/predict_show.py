"""The output of `paceline predict`: tables by drafter, optima, traffic, and launch lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from paceline.roofline.scenario.answer import (
    TIERS,
    BestNumbers,
    DrafterAnswer,
    Prediction,
)
from paceline.roofline.traffic import TrafficProfile

ENGINES = {"paceline": "Paceline", "vllm": "vLLM", "sglang": "SGLang"}


def tables(
    answer: Prediction, *, by_batch: bool, by_context: bool, components: bool
) -> Iterator[Table | str]:
    yield from _head(answer)
    for drafter in answer["drafters"]:
        yield f"\n[bold]{escape(drafter['name'])}: by draft length[/] (AL incl. bonus, times in ms)"
        yield curve_table(drafter)
        yield _best(drafter)
    if by_batch:
        yield "\n[bold]Best by batch: speedup at draft length[/]"
        yield optimum_table([_by_batch(drafter) for drafter in answer["drafters"]], "batch")
    if by_context:
        yield "\n[bold]Best by context: speedup at draft length[/]"
        yield optimum_table([_by_context(drafter) for drafter in answer["drafters"]], "context")
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
    table = plain_table()
    for name in ("draft", "AL", "step\nceiling", "\ncalibr.", "TPOT\nceiling", "\ncalibr.",
                 "speedup\nceiling", "\ncalibr.", "break-\neven AL"):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
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


@dataclass(frozen=True, slots=True)
class OptimumColumn:
    """A drafter's optimum over batches or contexts."""

    name: str
    places: list[int]
    max_draft: list[int | None]
    tiers: tuple[BestNumbers, BestNumbers]  # of TIERS


def _by_batch(drafter: DrafterAnswer) -> OptimumColumn:
    view = drafter["by_batch"]
    tiers = view["ceiling"], view["calibrated"]
    return OptimumColumn(drafter["name"], view["batch"], view["max_draft"], tiers)


def _by_context(drafter: DrafterAnswer) -> OptimumColumn:
    view = drafter["by_context"]
    assert view is not None, "the scenario states contexts"
    tiers = view["ceiling"], view["calibrated"]
    return OptimumColumn(drafter["name"], view["context"], view["max_draft"], tiers)


def optimum_table(columns: Sequence[OptimumColumn], over: str) -> Table:
    """Best draft length and its speedup over batch or context, for every drafter."""
    table = plain_table()
    table.add_column(over, justify="right")
    for column in columns:
        for tier in TIERS:
            table.add_column(f"{column.name}\n{tier}", justify="right")
    for index, place in enumerate(columns[0].places):
        cells = [_optimum(column, best, index) for column in columns for best in column.tiers]
        table.add_row(str(place), *cells)
    return table


def _optimum(column: OptimumColumn, best: BestNumbers, index: int) -> str:
    speedup = best["speedup"][index]
    if speedup is None:
        return "does not fit"
    if not column.max_draft[index]:
        return "no draft fits"
    return f"{speedup:.2f}× at {best['draft_length'][index]}"


def components_table(answer: Prediction) -> Table:
    """Milliseconds of a step: AR, and each drafter's best."""
    table = plain_table()
    table.add_column("")
    columns: list[Mapping[str, float]] = []
    for tier in TIERS:
        table.add_column(f"AR\n{tier}", justify="right")
        columns.append(answer["ar"][tier]["components"])
    for drafter in answer["drafters"]:
        for tier in TIERS:
            best = drafter["optimum"][tier]
            table.add_column(f"{drafter['name']}, {best['draft_length']}\n{tier}", justify="right")
            columns.append(best["components"])
    for name in dict.fromkeys(name for column in columns for name in column):
        cells = [f"{column[name]:.3f}" if name in column else "-" for column in columns]
        table.add_row(name, *cells)
    table.add_row("all", *(f"{sum(column.values()):.3f}" for column in columns), style="bold")
    return table


def traffic_table(traffic: TrafficProfile) -> Table:
    table = plain_table()
    for name in ("", "mean", "p50", "p90", "p99"):
        table.add_column(name, justify="right" if name else "left")
    for name, spread in (("prompt", traffic.prompt_tokens), ("output", traffic.output_tokens)):
        cells = (spread.mean, spread.p50, spread.p90, spread.p99)
        table.add_row(f"{name} tokens", *(f"{cell:.0f}" for cell in cells))
    return table


def worth_lines(traffic: TrafficProfile, worths: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    share = traffic.decode_share
    known = "unknown" if share is None else f"{share:.0%}"
    yield (
        f"time in decode: {known}; concurrency {traffic.concurrency:.1f}, of which "
        f"{traffic.decoding:.1f} decode at once while any does; context {traffic.context:.0f}"
    )
    if traffic.acceptance_length is not None:
        length = f"{traffic.acceptance_length:.2f}"
        yield f"[yellow]this server speculates already[/], with an AL of {length} incl. bonus"
    for note in traffic.notes:
        yield f"[dim]note: {escape(note)}[/]"
    for worth in worths:
        name, limit = escape(worth["drafter"]), worth["limit"]
        gain = f"{worth['gain']:.2f}× from end to end"
        most = "" if limit is None else f" (at most {limit:.2f}× with free decoding)"
        if worth["worth_it"]:
            yield f"{name}: [bold]{gain}[/]{most}"
        else:
            yield f"{name}: [bold yellow]not worth it[/], {gain}: " + escape(
                "; ".join(worth["reasons"])
            )


def flag_lines(answer: Prediction) -> Iterator[str]:
    """Launch lines of each drafter at its calibrated optimum."""
    for drafter in answer["drafters"]:
        length = drafter["optimum"]["calibrated"]["draft_length"]
        lines = {ENGINES[key]: line for key, line in drafter["flags"].items() if line}
        if lines:
            yield f"{drafter['name']} at draft length {length}:"
            for engine, line in lines.items():
                yield f"  {engine + ':':<10}{line}"


def plain_table() -> Table:
    """Narrow enough for a terminal of 80 columns. Titles are lines of their own: a table's would
    wrap at its width."""
    return Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
