"""The results of a mock, as a table and as JSON. Both say that it was mocked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median

from rich.table import Table

from paceline.bench.mock.measure import Measured
from paceline.bench.mock.plan import MockPlan
from paceline.bench.mock.predict import CALIBRATED, Compared
from paceline.bench.report.tables import base_table
from paceline.bench.steps.grid import measured_on, point_json
from paceline.engine.engine import Engine
from paceline.roofline.device import Hardware
from paceline.roofline.fit import MeasuredStep

FORMAT = "paceline-mock/1"
Predicted = Sequence[Mapping[str, Compared]]  # of each cell, by tier
COLUMNS = (
    "2×: a batch of 2. AL: tokens a round, incl. bonus. Speedup: AL as it was set x AR's step "
    "÷ the step with drafts, drafting included; medians of steps that took turns. ±: 95%. "
    "Ratio: measured ÷ predicted.",
    "Roofline: at this machine's measured bandwidth and peak.",
)
NOT_CALIBRATED = (
    "No calibrated prediction: give --calibration, which `paceline roofline fit` writes."
)


def table(
    engine: Engine, plan: MockPlan, measured: Sequence[Measured], predicted: Predicted
) -> Table:
    """Return a row for each cell, under its batch; it fits a terminal of 80 columns."""
    heading = (
        f"Mocked: {engine.model_name}, random weights, {engine.config.dtype}, context "
        f"{plan.context}. Rule synthetic: NOT lossless, the output means nothing."
    )
    names = ["draft", "AL\nset", "AL\nmeasured", "step\nms", "speedup\nmeasured"]
    for tier in predicted[0] if predicted else ():
        names += [tier, "ratio"]
    made = base_table(heading, numbers=names)
    made.collapse_padding = True
    together = list(zip(measured, predicted, strict=True))
    for batch in dict.fromkeys(result.cell.batch for result in measured):
        of_batch = [pair for pair in together if pair[0].cell.batch == batch]
        plain = median(result.ar_seconds for result, _ in of_batch)
        made.add_row(f"[italic]{batch}×[/]", "", "", f"{1e3 * plain:.2f}", "[italic]AR[/]")
        for result, tiers in of_batch:
            made.add_row(*_cells(result, tiers))
        made.add_section()
    return made


def _cells(result: Measured, predicted: Mapping[str, Compared]) -> list[str]:
    cells = [
        str(result.cell.draft_length),
        f"{result.cell.acceptance_length:.2f}",
        _with_spread(result.al, result.al_interval),
        f"{1e3 * result.step_seconds:.2f}",
        _with_spread(result.speedup, result.speedup_interval),
    ]
    for compared in predicted.values():
        cells += [f"{compared.predicted.speedup:.2f}", f"{compared.ratio:.2f}"]
    return cells


def _with_spread(value: float, interval: tuple[float, float]) -> str:
    """Write a value with the longer arm of its interval."""
    return f"{value:.2f} ± {max(value - interval[0], interval[1] - value):.2f}"


def notes(predicted: Predicted) -> list[str]:
    """Return lines that explain the columns."""
    calibrated = any(CALIBRATED in tiers for tiers in predicted)
    return [*COLUMNS] if calibrated else [*COLUMNS, NOT_CALIBRATED]


def as_json(
    engine: Engine,
    plan: MockPlan,
    machine: Hardware,
    measured: Sequence[Measured],
    predicted: Predicted,
) -> dict[str, object]:
    """Return plain JSON, times in seconds. `points` are for `paceline roofline fit`."""
    (drafter,) = engine.drafters.values()
    share = getattr(drafter, "share", None)
    return {
        "format": FORMAT,
        "mocked": True,
        "rule": engine.config.rule,
        **measured_on(engine, machine),
        "drafter": {"spec": engine.config.drafter, "share": share and asdict(share)},
        "context": plan.context,
        "steps": plan.steps,
        "cells": [_cell(result, tiers) for result, tiers in zip(measured, predicted, strict=True)],
        "points": [point_json(point) for result in measured for point in _points(result)],
    }


def _cell(result: Measured, predicted: Mapping[str, Compared]) -> dict[str, object]:
    cell = result.cell
    numbers = {name: value for name, value in asdict(result).items() if name != "cell"}
    return {
        "batch": cell.batch,
        "draft_length": cell.draft_length,
        "acceptance_length": cell.acceptance_length,
        "conditional": list(cell.rates),
        "measured": numbers,
        "predicted": {tier: asdict(compared) for tier, compared in predicted.items()},
    }


def _points(result: Measured) -> list[MeasuredStep]:
    """Return the target's step of each side, without the drafting."""
    batch, context = result.cell.batch, round(result.context)
    verify = result.step_seconds - result.draft_seconds
    return [
        MeasuredStep(batch, 1, context, result.ar_seconds),
        MeasuredStep(batch, result.cell.draft_length + 1, context, verify),
    ]
