"""A profile in the terminal and as JSON, both from the same lines."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TypedDict

import torch
from rich.table import Table

from paceline.bench.report.tables import base_table
from paceline.engine.engine import Engine
from paceline.profiling.gaps import ADVICE, ProfileRow, Roof, largest_gap
from paceline.profiling.run import ENGINE, Pass, ProfilePlan
from paceline.profiling.tree import STEP, Steps, totals


def table(name: str, steps: Steps, rows: Sequence[ProfileRow]) -> Table:
    """Return a line for each span; the table fits a terminal of 80 columns."""
    made = base_table(f"{name}: {described(steps)}")
    made.add_column("span", no_wrap=True)
    for column in ("per step", "ms", "share", "bound ms", "gap ms"):
        made.add_column(column, justify="right", no_wrap=True)
    total = rows[0].seconds
    for row in rows:
        made.add_row(
            "  " * row.depth + row.name,
            f"{row.spans:.4g}",
            _ms(row.seconds),
            f"{100 * row.seconds / total:.1f}%",
            "" if row.bound is None else _ms(row.bound),
            _ms(row.gap),
            style=None if row.leaf else "bold",
        )
    return made


def served_table(served: Pass) -> Table:
    """Return what serving over HTTP adds, per step of the engine, steps with prompts included."""
    made = base_table("served over HTTP")
    for column in ("span", "thread"):
        made.add_column(column, no_wrap=True)
    for column in ("per step", "ms per step"):
        made.add_column(column, justify="right", no_wrap=True)
    for line in served_lines(served):
        made.add_row(
            line["span"], line["thread"], f"{line['per_step']:.4g}", f"{line['ms_per_step']:.3f}"
        )
    return made


class ServedLine(TypedDict):
    """A span of a served pass, per step of the engine."""

    span: str
    thread: str
    per_step: float
    ms_per_step: float


def served_lines(served: Pass) -> list[ServedLine]:
    """Return the engine's spans, and those of the event loop, which works beside the next steps."""
    engine, *streams = (lane.spans() for lane in served.recording.lanes)
    steps = sum(span.name == STEP and span.counts is not None for span in engine)
    return [
        ServedLine(
            span=node.name,
            thread=thread,
            per_step=node.spans / steps,
            ms_per_step=node.ns / steps / 1e6,
        )
        for thread, lanes in ((ENGINE, [engine]), ("event loop", streams))
        for node in totals(lanes).values()
    ]


def described(steps: Steps) -> str:
    """Return one line on the rows and tokens of the steps."""
    count = f"{steps.decode_steps} decode step{'' if steps.decode_steps == 1 else 's'}"
    return (
        f"{count}, each of {steps.mean('rows'):.2f} rows of {steps.mean('requests'):.2f} requests "
        f"with {steps.mean('drafted'):.2f} tokens drafted and {steps.mean('committed'):.2f} "
        "committed"
    )


def sentence(rows: Sequence[ProfileRow]) -> str:
    """Return a sentence on the largest gap, with advice where there is some."""
    worst, step = largest_gap(list(rows)), rows[0]
    if step.gap <= 0:
        return (
            f"No gap: the steps took {_ms(step.seconds)} ms and their bound is "
            f"{_ms(step.bound or 0)} ms. Something else ran while the bound was measured: "
            "profile again on a quiet machine."
        )
    where = " > ".join(worst.path[1:])
    bound = "" if worst.bound is None else f", bound {_ms(worst.bound)} ms"
    gap = (
        f"Largest gap to the roofline: {where}, {_ms(worst.gap)} of the step's {_ms(step.gap)} ms "
        f"above its bound (takes {_ms(worst.seconds)} ms{bound})"
    )
    advice = ADVICE.get(worst.name)
    return f"{gap}." if advice is None else f"{gap}: {advice}."


def roof_line(roof: Roof) -> str:
    bandwidth = roof.bandwidth
    peak = "not measured for int8" if roof.peak is None else f"{roof.peak / 1e9:.0f} billion/s"
    return (
        f"bandwidth bound: {_ms(bandwidth.seconds)} ms for the weights at "
        f"{bandwidth.streamed / bandwidth.seconds / 1e9:.1f} GB/s (median of {bandwidth.reads} "
        f"read loops between the steps); operations of a large product: {peak}"
    )


def steps_line(steps: Steps) -> str:
    """Return one line on the spread of the steps, and on those that the table leaves out."""
    middle, count = median(steps.durations) / 1e9, steps.prompt_steps
    token = sum(steps.durations) / 1e9 / steps.total("committed")
    return (
        f"{_ms(token)} ms per committed token; median step: {_ms(middle)} ms; left out: {count} "
        f"step{'' if count == 1 else 's'} with prompts, {_ms(steps.prompt_ns / 1e9)} ms together"
    )


def about(engine: Engine, plan: ProfilePlan) -> dict[str, object]:
    """Return the model, the form in which it ran, and the plan."""
    config = engine.config
    return {
        "model": engine.model_name,
        "network": engine.backend,
        "dtype": config.dtype,
        "quantize": config.quantize,
        "threads": torch.get_num_threads(),
        "drafters": list(engine.drafters),
        "batch": plan.batch,
        "temperature": plan.params.temperature,
    }


def as_json(name: str, steps: Steps, rows: Sequence[ProfileRow], roof: Roof) -> dict[str, object]:
    """Return one pass: times in ms per decode step, `spans` ordered as in the table."""
    worst = largest_gap(list(rows))
    return {
        "pass": name,
        "decode_steps": steps.decode_steps,
        "prompt_steps": steps.prompt_steps,
        "prompt_ms": steps.prompt_ns / 1e6,
        "step_ms": {"mean": 1e3 * rows[0].seconds, "median": median(steps.durations) / 1e6},
        "ms_per_committed_token": sum(steps.durations) / 1e6 / steps.total("committed"),
        "read_loop": {
            "bytes": roof.bandwidth.streamed,
            "median_ms": 1e3 * roof.bandwidth.seconds,
            "reads": roof.bandwidth.reads,
        },
        "peak_operations_per_second": roof.peak,
        "per_step": {key: steps.mean(key) for key in sorted(steps.counts[0])},
        "spans": [
            {
                "path": list(row.path),
                "per_step": row.spans,
                "ms": 1e3 * row.seconds,
                "share": row.seconds / rows[0].seconds,
                "bound_ms": None if row.bound is None else 1e3 * row.bound,
                "gap_ms": 1e3 * row.gap,
                "leaf": row.leaf,
            }
            for row in rows
        ],
        "largest_gap": {
            "path": list(worst.path),
            "gap_ms": 1e3 * worst.gap,
            "advice": ADVICE.get(worst.name),
        },
    }


def _ms(seconds: float) -> str:
    """Write milliseconds with four digits, at most three behind the point."""
    milliseconds = 1e3 * seconds
    digits = 3 if abs(milliseconds) < 10 else 2 if abs(milliseconds) < 100 else 1
    return f"{milliseconds:.{digits}f}"
