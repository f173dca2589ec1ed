"""What `paceline predict` prints: a table a drafter, optima, components, traffic, launch lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

TIERS = ("ceiling", "calibrated")
CONTEXT = ("by_context", "context")
ENGINES = {"paceline": "Paceline", "vllm": "vLLM", "sglang": "SGLang"}
Answer = Mapping[str, Any]


def tables(
    answer: Answer, *, by_batch: bool, by_context: bool, components: bool
) -> Iterator[Table | str]:
    yield from _head(answer)
    for drafter in answer["drafters"]:
        yield f"\n[bold]{escape(drafter['name'])}: by draft length[/] (AL incl. bonus, times in ms)"
        yield curve_table(drafter)
        yield _best(drafter)
    for wanted, view, over in ((by_batch, "by_batch", "batch"), (by_context, *CONTEXT)):
        if wanted:
            yield f"\n[bold]Best by {over}: speedup at draft length[/]"
            yield optimum_table(answer, view, over)
    if components:
        yield "\n[bold]Where a step's time goes, ms[/]"
        yield components_table(answer)
    for note in answer["notes"]:
        yield f"[dim]note: {escape(note)}[/]"


def _head(answer: Answer) -> Iterator[str]:
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
        f"{plain['calibrated']:.2f} ms calibrated ({escape(answer['calibration']['name'])})"
    )


def curve_table(drafter: Answer) -> Table:
    """One row a draft length; `<` marks each tier's best."""
    table = plain_table()
    for name in ("draft", "AL", "step\nceiling", "\ncalibr.", "TPOT\nceiling", "\ncalibr.",
                 "speedup\nceiling", "\ncalibr.", "break-\neven AL"):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    curve = drafter["curve"]
    for length in curve["draft_length"]:
        best = [drafter["optimum"][tier]["draft_length"] == length for tier in TIERS]
        cells = [str(length), f"{curve['acceptance_length'][length]:.2f}"]
        for name in ("step_ms", "tpot_ms"):
            cells += [f"{curve[tier][name][length]:.2f}" for tier in TIERS]
        for tier, marked in zip(TIERS, best, strict=True):
            speedup = f"{curve[tier]['speedup'][length]:.2f}×"
            cells.append(f"[bold green]{speedup}<[/]" if marked else f"{speedup} ")
        cells.append(f"{curve['calibrated']['break_even_length'][length]:.2f}")
        table.add_row(*cells)
    return table


def _best(drafter: Answer) -> str:
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


def optimum_table(answer: Answer, view: str, over: str) -> Table:
    """Best draft length and its speedup over batch or context, for every drafter."""
    table = plain_table()
    table.add_column(over, justify="right")
    for drafter in answer["drafters"]:
        for tier in TIERS:
            table.add_column(f"{drafter['name']}\n{tier}", justify="right")
    for index, place in enumerate(answer["drafters"][0][view][over]):
        cells = []
        for drafter in answer["drafters"]:
            for tier in TIERS:
                cells.append(_optimum(drafter[view], tier, index))
        table.add_row(str(place), *cells)
    return table


def _optimum(view: Answer, tier: str, index: int) -> str:
    length, speedup = (view[tier][name][index] for name in ("draft_length", "speedup"))
    if speedup is None:
        return "does not fit"
    return f"{speedup:.2f}× at {length}" if view["max_draft"][index] else "no draft fits"


def components_table(answer: Answer) -> Table:
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


def traffic_table(traffic: Any) -> Table:
    table = plain_table()
    for name in ("", "mean", "p50", "p90", "p99"):
        table.add_column(name, justify="right" if name else "left")
    for name, spread in (("prompt", traffic.prompt_tokens), ("output", traffic.output_tokens)):
        cells = (spread.mean, spread.p50, spread.p90, spread.p99)
        table.add_row(f"{name} tokens", *(f"{cell:.0f}" for cell in cells))
    return table


def verdict_lines(traffic: Any, verdicts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
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
    for verdict in verdicts:
        name, limit = escape(verdict["drafter"]), verdict["limit"]
        gain = f"{verdict['gain']:.2f}× from end to end"
        most = "" if limit is None else f" (at most {limit:.2f}× with free decoding)"
        if verdict["worth_it"]:
            yield f"{name}: [bold]{gain}[/]{most}"
        else:
            yield f"{name}: [bold yellow]not worth it[/], {gain}: " + escape(
                "; ".join(verdict["reasons"])
            )


def flag_lines(answer: Answer) -> Iterator[str]:
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
