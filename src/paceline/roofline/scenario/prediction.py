"""The answer of a scenario: every view of one prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from paceline.roofline.architecture.components import Experts
from paceline.roofline.cost import StepTime, Workload
from paceline.roofline.cost.capacity import capacity, check_fits
from paceline.roofline.cost.grid import Grid
from paceline.roofline.device import IDEAL, Calibration
from paceline.roofline.scenario.answer import (
    CALIBRATED,
    CEILING,
    FORMAT,
    ArStep,
    BestByContext,
    Curve,
    Device,
    DrafterAnswer,
    ModelSize,
    Optimum,
    Prediction,
    Tier,
    Tiers,
)
from paceline.roofline.scenario.drafters import PricedDrafter
from paceline.roofline.scenario.kinds import launch_flags
from paceline.roofline.scenario.scenario import Scenario
from paceline.roofline.scenario.views import MS, PlainSteps, drafter_view

NOTICED = 1.01


def predict(stated: object) -> Prediction:
    """Answer a scenario of plain JSON: what speculation would buy.

    `documents.StatedScenario` lists what can be stated, `answer.Prediction` what is answered.
    Raises InvalidRequest that names the field, or ModelError for a config of an unknown family.
    """
    return answer(Scenario.read(stated))


def answer(scenario: Scenario) -> Prediction:
    """Compute every view of a scenario. Raises InvalidRequest where the batch does not fit."""
    here = Workload(scenario.batch, 1, scenario.context)
    fits = check_fits(scenario.deployment, here)
    by_batch = _steps(scenario, scenario.batches, [(b, scenario.context) for b in scenario.batches])
    by_context = _steps(scenario, scenario.contexts, [(here.batch, c) for c in scenario.contexts])
    drafters = [_drafter(scenario, drafter, by_batch, by_context) for drafter in scenario.drafters]
    return {
        "format": FORMAT,
        "scenario": scenario.stated,
        "model": _model(scenario),
        "hardware": _device(scenario),
        "calibration": {"name": scenario.calibration_name, **scenario.calibration.model_dump()},
        "capacity": {"max_batch": fits.max_batch},
        "ar": {
            "ceiling": _plain(scenario, IDEAL, here),
            "calibrated": _plain(scenario, scenario.calibration, here),
        },
        "ar_by_batch": {
            "batch": list(scenario.batches),
            "ceiling": by_batch.front(CEILING),
            "calibrated": by_batch.front(CALIBRATED),
        },
        "drafters": drafters,
        "notes": _notes(scenario, fits.max_batch, drafters),
    }


def _tiers(scenario: Scenario) -> dict[str, Calibration]:
    return {CEILING: IDEAL, CALIBRATED: scenario.calibration}


def _steps(
    scenario: Scenario, places: Sequence[int], points: Sequence[tuple[int, int]]
) -> PlainSteps:
    """Steps over the (batch, context) points that fit: the first ones, for the points are
    sorted."""
    longest = max(drafter.longest(scenario.max_draft) for drafter in scenario.drafters)
    most = {
        context: capacity(scenario.deployment, Workload(1, 1, context)).max_batch
        for context in {context for _, context in points}
    }
    loads = [Workload(batch, 1, context) for batch, context in points if batch <= most[context]]
    grid = Grid(scenario.deployment, tuple(loads), _tiers(scenario))
    return PlainSteps.of(grid, places, longest)


def _plain(scenario: Scenario, calibration: Calibration, here: Workload) -> ArStep:
    time = scenario.deployment.forward_time(here, calibration)
    per_request = 1 / time.total
    return {
        "step_ms": MS * time.total,
        "tpot_ms": MS * time.total,
        "tokens_per_second_per_request": per_request,
        "tokens_per_second_per_device": here.batch * per_request / scenario.deployment.devices,
        "components": _milliseconds(time),
    }


def _milliseconds(time: StepTime) -> dict[str, float]:
    return {name: MS * seconds for name, seconds in time.components.items()}


def _model(scenario: Scenario) -> ModelSize:
    model = scenario.deployment.architecture
    return {
        "name": model.name,
        "family": model.family,
        "parameters": model.parameters(),
        "active_parameters": model.active_parameters(),
        "weight_bytes": model.weight_bytes(),
        "kv_bytes_per_token": model.kv_bytes_per_token(),
        "state_bytes": model.state_bytes(),
    }


def _device(scenario: Scenario) -> Device:
    device = scenario.deployment.hardware
    return {
        "name": device.name,
        "devices": scenario.deployment.devices,
        "memory": device.memory,
        "memory_bandwidth": device.memory_bandwidth,
        "source": device.source,
    }


# -- one drafter -----------------------------------------------------------------------------------


def _drafter(
    scenario: Scenario, drafter: PricedDrafter, by_batch: PlainSteps, by_context: PlainSteps
) -> DrafterAnswer:
    view = drafter_view(by_batch, drafter, scenario.max_draft)
    place = scenario.batches.index(scenario.batch)
    fitting = int(view.fits[place].sum())  # longer drafts take more memory, never less
    curve: Curve = {
        "draft_length": list(range(fitting)),
        "acceptance_length": view.accepted[:fitting].tolist(),
        "ceiling": view.curve(CEILING, place, fitting),
        "calibrated": view.curve(CALIBRATED, place, fitting),
    }
    optimum: Tiers[Optimum] = {
        "ceiling": _optimum(scenario, curve, CEILING, int(view.best(CEILING)[place])),
        "calibrated": _optimum(scenario, curve, CALIBRATED, int(view.best(CALIBRATED)[place])),
    }
    served = optimum["calibrated"]["draft_length"]
    return {
        "name": drafter.name,
        "kind": drafter.kind,
        "block": drafter.block,
        "max_draft": fitting - 1,
        "acceptance": drafter.acceptance.conditional(fitting - 1).tolist(),
        "curve": curve,
        "optimum": optimum,
        "by_batch": {
            "batch": list(scenario.batches),
            "max_draft": view.longest(),
            "ceiling": view.optima(CEILING),
            "calibrated": view.optima(CALIBRATED),
        },
        "by_context": _by_context(scenario, drafter, by_context),
        "heat_map": {
            "batch": list(scenario.batches),
            "draft_length": list(range(len(view.accepted))),
            "ceiling": view.speedups(CEILING),
            "calibrated": view.speedups(CALIBRATED),
        },
        "commits": drafter.acceptance.commit_probabilities(served).tolist(),
        "flags": _flags(scenario, drafter, served),
    }


def _flags(scenario: Scenario, drafter: PricedDrafter, served: int) -> dict[str, str | None]:
    deployment = scenario.deployment
    return launch_flags(
        drafter.kind,
        served,
        model=scenario.checkpoint or "MODEL",
        family=deployment.architecture.family,
        drafter=drafter.checkpoint,
        options=deployment.options,
        experts=deployment.architecture.has(Experts),
    )


def _optimum(scenario: Scenario, curve: Curve, tier: Tier, length: int) -> Optimum:
    load = Workload(scenario.batch, length + 1, scenario.context)
    time = scenario.deployment.forward_time(load, _tiers(scenario)[tier])
    numbers = curve[tier]
    optimum = {
        "draft_length": length,
        "acceptance_length": curve["acceptance_length"][length],
        **{name: cast(list[float], values)[length] for name, values in numbers.items()},
        "components": {**_milliseconds(time), "draft": numbers["draft_ms"][length]},
    }
    return cast(Optimum, optimum)


def _by_context(
    scenario: Scenario, drafter: PricedDrafter, steps: PlainSteps
) -> BestByContext | None:
    if not scenario.contexts:
        return None
    view = drafter_view(steps, drafter, scenario.max_draft)
    return {
        "context": list(scenario.contexts),
        "max_draft": view.longest(),
        "ceiling": view.optima(CEILING),
        "calibrated": view.optima(CALIBRATED),
    }


def _notes(scenario: Scenario, most: int, drafters: Sequence[DrafterAnswer]) -> list[str]:
    notes = []
    for drafter, shown in zip(scenario.drafters, drafters, strict=True):
        name, longest = drafter.name, drafter.longest(scenario.max_draft)
        if longest < scenario.max_draft:
            why = "its block" if longest == drafter.block else "as far as its acceptance is known"
            why = "its max_draft" if longest == drafter.max_draft else why
            notes.append(f"{name}: drafts of up to {longest}, {why}")
        if shown["max_draft"] < longest:
            fitting = shown["max_draft"]
            what = f"drafts longer than {fitting}" if fitting else "its weights and drafts"
            notes.append(f"{name}: {what} do not fit the memory beside the requests")
    if any(_above(shown["optimum"]) for shown in drafters):
        notes.append(
            "the ceiling is one of tokens per second at the datasheet's rates; overheads slow "
            "steps without drafts as well, so that a calibrated speedup may be the larger one"
        )
    if most < max(scenario.batches):
        notes.append(f"batches above {most} do not fit at a context of {scenario.context}")
    return notes


def _above(best: Tiers[Optimum]) -> bool:
    """Return whether the calibrated speedup is above the ceiling's."""
    return best["calibrated"]["speedup"] > NOTICED * best["ceiling"]["speedup"]
