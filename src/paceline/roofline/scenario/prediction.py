"""The answer of a scenario: every view of one prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from paceline.roofline.architecture.components import Experts
from paceline.roofline.cost import StepTime, Workload
from paceline.roofline.cost.capacity import capacity, check_fits
from paceline.roofline.cost.grid import Grid
from paceline.roofline.scenario.answer import (
    FORMAT,
    ArStep,
    Components,
    Curve,
    DrafterAnswer,
    Optimum,
    Prediction,
    Tier,
    by_tier,
)
from paceline.roofline.scenario.drafters import PricedDrafter
from paceline.roofline.scenario.kinds import launch_flags
from paceline.roofline.scenario.scenario import Scenario
from paceline.roofline.scenario.views import MS, PlainSteps, drafter_view

NOTICED = 1.01


def predict(stated: object) -> Prediction:
    """Answer a scenario of plain JSON: what speculation would buy.

    `documents.StatedScenario` lists what can be stated, `answer.Prediction` what is answered.
    Raises InvalidRequest that names the field, or ModelError for a config of an unknown family, and
    InvalidRequest where the batch does not fit.
    """
    scenario = Scenario.read(stated)
    deployment, asked = scenario.deployment, scenario.stated
    model, device = deployment.architecture, deployment.hardware
    here = Workload(asked.batch, 1, asked.context)
    fits = check_fits(deployment, here)
    by_batch = _steps(scenario, scenario.batches, [(b, here.context) for b in scenario.batches])
    by_context = _steps(scenario, scenario.contexts, [(here.batch, c) for c in scenario.contexts])
    drafters = [_drafter(scenario, drafter, by_batch, by_context) for drafter in scenario.drafters]
    return {
        "format": FORMAT,
        "scenario": scenario.plain,
        "model": {
            "name": model.name,
            "family": model.family,
            "parameters": model.parameters(),
            "active_parameters": model.active_parameters(),
            "weight_bytes": model.weight_bytes(),
            "kv_bytes_per_token": model.kv_bytes_per_token(),
            "state_bytes": model.state_bytes(),
        },
        "hardware": {
            "name": device.name,
            "devices": deployment.devices,
            "memory": device.memory,
            "memory_bandwidth": device.memory_bandwidth,
            "source": device.source,
        },
        "calibration": {"name": scenario.calibration_name, **scenario.calibration.model_dump()},
        "capacity": {"max_batch": fits.max_batch},
        "ar": by_tier(lambda tier: _plain(scenario, tier, here)),
        "ar_by_batch": {"batch": list(scenario.batches), **by_tier(by_batch.front)},
        "drafters": drafters,
        "notes": _notes(scenario, fits.max_batch, drafters),
    }


def _steps(
    scenario: Scenario, places: tuple[int, ...], points: Sequence[tuple[int, int]]
) -> PlainSteps:
    """Steps over the (batch, context) points that fit: the first ones, for the points are sorted.
    They verify the longest drafts of all drafters."""
    longest = max(drafter.longest for drafter in scenario.drafters)
    most = {
        context: capacity(scenario.deployment, Workload(1, 1, context)).max_batch
        for context in {context for _, context in points}
    }
    loads = [Workload(batch, 1, context) for batch, context in points if batch <= most[context]]
    grid = Grid(scenario.deployment, tuple(loads), scenario.tiers)
    return PlainSteps(grid, places, grid.forwards(range(1, longest + 2)))


def _plain(scenario: Scenario, tier: Tier, here: Workload) -> ArStep:
    time = scenario.deployment.forward_time(here, scenario.tiers[tier])
    per_request = 1 / time.total
    return {
        "step_ms": MS * time.total,
        "tpot_ms": MS * time.total,
        "tokens_per_second_per_request": per_request,
        "tokens_per_second_per_device": here.batch * per_request / scenario.deployment.devices,
        "components": _milliseconds(time),
    }


def _milliseconds(time: StepTime) -> Components:
    return {name: MS * seconds for name, seconds in time.components.items()}


def _drafter(
    scenario: Scenario, drafter: PricedDrafter, by_batch: PlainSteps, by_context: PlainSteps
) -> DrafterAnswer:
    asked, deployment = scenario.stated, scenario.deployment
    view = drafter_view(by_batch, drafter)
    place, batches = scenario.batches.index(asked.batch), list(scenario.batches)
    fitting = int(view.fits[place].sum())  # longer drafts take more memory, never less
    curve: Curve = {
        "draft_length": list(range(fitting)),
        "acceptance_length": view.accepted[:fitting].tolist(),
        **by_tier(lambda tier: view.curve(tier, place, fitting)),
    }
    optimum = by_tier(lambda tier: _optimum(scenario, curve, tier, int(view.lengths(tier)[place])))
    served = optimum["calibrated"]["draft_length"]
    contexts = list(scenario.contexts)
    far = drafter_view(by_context, drafter) if contexts else None
    return {
        "name": drafter.name,
        "kind": drafter.kind,
        "block": drafter.block,
        "max_draft": fitting - 1,
        "acceptance": drafter.acceptance.conditional(fitting - 1).tolist(),
        "curve": curve,
        "optimum": optimum,
        "by_batch": {"batch": batches, **view.best()},
        "by_context": {"context": contexts, **far.best()} if far else None,
        "heat_map": {
            "batch": batches,
            "draft_length": list(range(len(view.accepted))),
            **by_tier(view.speedups),
        },
        "commits": drafter.acceptance.commit_probabilities(served).tolist(),
        "flags": launch_flags(
            drafter.kind,
            served,
            model=asked.checkpoint or "MODEL",
            family=deployment.architecture.family,
            drafter=drafter.checkpoint,
            options=deployment.options,
            experts=deployment.architecture.has(Experts),
        ),
    }


def _optimum(scenario: Scenario, curve: Curve, tier: Tier, length: int) -> Optimum:
    load = Workload(scenario.stated.batch, length + 1, scenario.stated.context)
    time = scenario.deployment.forward_time(load, scenario.tiers[tier])
    numbers = curve[tier]
    optimum = {
        "draft_length": length,
        "acceptance_length": curve["acceptance_length"][length],
        **{name: cast(list[float], values)[length] for name, values in numbers.items()},
        "components": {**_milliseconds(time), "draft": numbers["draft_ms"][length]},
    }
    return cast(Optimum, optimum)


def _notes(scenario: Scenario, most: int, drafters: Sequence[DrafterAnswer]) -> list[str]:
    notes = []
    for drafter, shown in zip(scenario.drafters, drafters, strict=True):
        name, longest = drafter.name, drafter.longest
        if longest < scenario.stated.max_draft:
            why = "its block" if longest == drafter.block else "as far as its acceptance is known"
            why = "its max_draft" if longest == drafter.max_draft else why
            notes.append(f"{name}: drafts of up to {longest}, {why}")
        if shown["max_draft"] < longest:
            fitting = shown["max_draft"]
            what = f"drafts longer than {fitting}" if fitting else "its weights and drafts"
            notes.append(f"{name}: {what} do not fit the memory beside the requests")
    best = [shown["optimum"] for shown in drafters]
    if any(b["calibrated"]["speedup"] > NOTICED * b["ceiling"]["speedup"] for b in best):
        notes.append(
            "the ceiling is one of tokens per second at the datasheet's rates; overheads slow "
            "steps without drafts as well, so that a calibrated speedup may be the larger one"
        )
    if most < max(scenario.batches):
        notes.append(f"batches above {most} do not fit at a context of {scenario.stated.context}")
    return notes
