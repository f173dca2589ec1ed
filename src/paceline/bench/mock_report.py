"""What a mock came to, as a table and as JSON. Both say that it was mocked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.table import Table

from paceline.bench.mock import Measured, Plan
from paceline.bench.mock_predict import CALIBRATED, Compared
from paceline.bench.report import base_table
from paceline.bench.step_times import point_json
from paceline.bench.this_machine import NUMBERS
from paceline.engine.engine import Engine
from paceline.roofline.device import Hardware
from paceline.roofline.fit import MeasuredStep

FORMAT = "paceline-mock/1"
Predicted = Sequence[Mapping[str, Compared]]  # of each cell, by tier


def title(engine: Engine, plan: Plan) -> str:
    number = NUMBERS[engine.config.dtype]
    return (
        f"Mocked: {engine.model_name}, random weights, {number}, context {plan.context}. "
        "Rule synthetic: NOT lossless, the output means nothing."
    )


def table(heading: str, measured: Sequence[Measured], predicted: Predicted) -> Table:
    """A row for each cell, under its batch; fits a terminal of 80 columns. Two columns for each
    tier that was predicted."""
    made = base_table(heading)
    made.collapse_padding = True
    names = ["draft", "AL\nset", "AL\nmeasured", "step\nms", "speedup\nmeasured"]
    for tier in predicted[0] if predicted else ():
        names += [tier, "ratio"]
    for name in names:
        made.add_column(name, justify="right", no_wrap=True)
    together = list(zip(measured, predicted, strict=True))
    for batch in dict.fromkeys(each.cell.batch for each in measured):
        own = [pair for pair in together if pair[0].cell.batch == batch]
        plain = median(each.ar_seconds for each, _ in own)
        made.add_row(f"[italic]{batch}×[/]", *[""] * 2, f"{1e3 * plain:.2f}", "[italic]AR[/]")
        for each, tiers in own:
            made.add_row(*_cells(each, tiers))
        made.add_section()
    return made


def _cells(each: Measured, predicted: Mapping[str, Compared]) -> list[str]:
    cell = each.cell
    cells = [
        str(cell.draft_length),
        f"{cell.acceptance_length:.2f}",
        _with_spread(each.al, each.al_interval),
        f"{1e3 * each.step_seconds:.2f}",
        _with_spread(each.speedup, each.speedup_interval),
    ]
    for compared in predicted.values():
        cells += [f"{compared.predicted.speedup:.2f}", f"{compared.ratio:.2f}"]
    return cells


def _with_spread(value: float, interval: tuple[float, float]) -> str:
    """With the longer arm of its interval."""
    return f"{value:.2f} ± {max(value - interval[0], interval[1] - value):.2f}"


def notes(predicted: Predicted) -> list[str]:
    """What the columns mean."""
    lines = [
        "2×: a batch of 2. AL: tokens a round, incl. bonus. Speedup: AL as it was set x AR's step "
        "÷ the step with drafts, drafting included; medians of steps that took turns. ±: 95%. "
        "Ratio: measured ÷ predicted.",
        "Ceiling: the roofline at this machine's measured bandwidth and peak.",
    ]
    if not any(CALIBRATED in tiers for tiers in predicted):
        lines.append(
            "No calibrated prediction: give --calibration, which `paceline roofline fit` writes."
        )
    return lines


def as_json(
    engine: Engine,
    plan: Plan,
    machine: Hardware,
    measured: Sequence[Measured],
    predicted: Predicted,
) -> dict[str, Any]:
    """Plain JSON; times in seconds. `points` are the target's steps as `paceline roofline fit`
    reads them, those of drafting left out."""
    (drafter,) = engine.drafters.values()
    share = getattr(drafter, "share", None)
    return {
        "format": FORMAT,
        "mocked": True,
        "rule": engine.config.rule,
        "lossless": engine.verifier.lossless,
        "model": engine.model_name,
        "precision": NUMBERS[engine.config.dtype],
        "network": engine.backend,
        "hardware": machine.model_dump(),
        "drafter": {
            "spec": engine.config.drafter,
            "share": None if share is None else asdict(share),
        },
        "context": plan.context,
        "steps": plan.steps,
        "cells": [_cell_json(each, tiers) for each, tiers in zip(measured, predicted, strict=True)],
        "points": [point_json(point) for each in measured for point in _points(each)],
    }


def _cell_json(each: Measured, predicted: Mapping[str, Compared]) -> dict[str, Any]:
    cell = each.cell
    found = {name: value for name, value in asdict(each).items() if name != "cell"}
    return {
        "batch": cell.batch,
        "draft_length": cell.draft_length,
        "acceptance_length": cell.acceptance_length,
        "conditional": list(cell.rates),
        "measured": found,
        "predicted": {tier: asdict(compared) for tier, compared in predicted.items()},
    }


def _points(each: Measured) -> list[MeasuredStep]:
    """The target's step of each side, the drafting left out."""
    batch, context = each.cell.batch, round(each.context)
    verify = each.step_seconds - each.draft_seconds
    return [
        MeasuredStep(batch, 1, context, each.ar_seconds),
        MeasuredStep(batch, each.cell.draft_length + 1, context, verify),
    ]
