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
    Evidence,
    LaunchLine,
    Optimum,
    Prediction,
    PublishedPoint,
    Tier,
    by_tier,
)
from paceline.roofline.scenario.drafters import PricedDrafter
from paceline.roofline.scenario.evidence import evidence
from paceline.roofline.scenario.kinds import lacking, launch_flags
from paceline.roofline.scenario.published import published_tables
from paceline.roofline.scenario.scenario import Scenario
from paceline.roofline.scenario.views import MS, DrafterView, PlainSteps, drafter_view


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
        "evidence": _evidence(scenario, None),
        "published": _published(scenario),
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


def _evidence(scenario: Scenario, kind: str | None) -> Evidence:
    deployment = scenario.deployment
    model, device = deployment.architecture, deployment.hardware
    load = Workload(scenario.stated.batch, 1, scenario.stated.context)
    return evidence(scenario.calibration_name, model, device, deployment.devices, load, kind)


def _published(scenario: Scenario) -> list[PublishedPoint]:
    """Published measurements of the model on as many of the same devices, averaged over sets."""
    deployment = scenario.deployment
    here = (deployment.architecture.name, deployment.hardware.name, deployment.devices)
    return [
        {
            "source": table.source,
            "url": table.url,
            "set": row.set,
            "kind": row.drafter,
            "batch": batch,
            "draft_length": row.draft_length,
            "acceptance_length": row.acceptance_length,
            "tokens_per_second": row.tokens_per_second[index] if row.tokens_per_second else None,
            "speedup": row.speedup[index] if row.speedup else None,
        }
        for table in published_tables()
        if (table.model, table.hardware, table.tensor_parallel) == here
        for row in table.series()
        for index, batch in enumerate(table.batch)
    ]


def _drafter(
    scenario: Scenario, drafter: PricedDrafter, by_batch: PlainSteps, by_context: PlainSteps
) -> DrafterAnswer:
    view = drafter_view(by_batch, drafter)
    place, batches = scenario.batches.index(scenario.stated.batch), list(scenario.batches)
    lengths = list(range(drafter.longest + 1))
    fits = view.fits[place].tolist()
    longest = sum(fits) - 1  # longer drafts take more memory, never less
    curve: Curve = {
        "draft_length": lengths,
        "fits": fits,
        "acceptance_length": view.accepted.tolist(),
        **by_tier(lambda tier: view.curve(tier, place)),
    }
    optimum = by_tier(lambda tier: _optimum(scenario, curve, view, tier)) if longest else None
    served = optimum["calibrated"]["draft_length"] if optimum else 0
    contexts = list(scenario.contexts)
    far = drafter_view(by_context, drafter) if contexts else None
    return {
        "name": drafter.name,
        "kind": drafter.kind,
        "block": drafter.block,
        "fits": view.fitting()[place],
        "max_draft": longest,
        "acceptance": drafter.acceptance.conditional(longest).tolist(),
        "curve": curve,
        "optimum": optimum,
        "evidence": _evidence(scenario, drafter.kind),
        "by_batch": {"batch": batches, **view.best()},
        "by_context": {"context": contexts, **far.best()} if far else None,
        "heat_map": {"batch": batches, "draft_length": lengths, **by_tier(view.speedups)},
        "commits": drafter.acceptance.commit_probabilities(served).tolist(),
        "flags": _launch_lines(scenario, drafter, served),
    }


def _launch_lines(scenario: Scenario, drafter: PricedDrafter, served: int) -> dict[str, LaunchLine]:
    deployment = scenario.deployment
    model, options = deployment.architecture, deployment.options
    lines = launch_flags(
        drafter.kind,
        served,
        model=scenario.stated.checkpoint or "MODEL",
        family=model.family,
        drafter=drafter.checkpoint,
        options=options,
        experts=model.has(Experts),
    )
    lacks = lacking(drafter.kind, served, family=model.family, options=options)
    return {
        engine: {"command": line, "missing": None if line else lacks[engine]}
        for engine, line in lines.items()
    }


def _optimum(scenario: Scenario, curve: Curve, view: DrafterView, tier: Tier) -> Optimum:
    place = scenario.batches.index(scenario.stated.batch)
    length = int(view.lengths(tier)[place])
    load = Workload(scenario.stated.batch, length + 1, scenario.stated.context)
    time = scenario.deployment.forward_time(load, scenario.tiers[tier])
    numbers = curve[tier]
    optimum = {
        "draft_length": length,
        "acceptance_length": curve["acceptance_length"][length],
        **{name: cast(list[float], values)[length] for name, values in numbers.items()},
        "components": {**_milliseconds(time), "draft": cast(float, numbers["draft_ms"][length])},
    }
    return cast(Optimum, optimum)


def _notes(scenario: Scenario, most: int, drafters: Sequence[DrafterAnswer]) -> list[str]:
    notes = []
    devices = scenario.deployment.options.tensor_parallel
    if scenario.stated.tensor_parallel is None and devices > 1:
        notes.append(f"{devices} devices share each layer: the fewest that hold the model")
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
    if most < max(scenario.batches):
        notes.append(f"batches above {most} do not fit at a context of {scenario.stated.context}")
    return notes
