"""From a scenario to the answer that `scenario` documents: every view of one prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.roofline.calibration import IDEAL
from paceline.roofline.capacity import check_fits, max_batch
from paceline.roofline.components import Experts
from paceline.roofline.cost import Options, Workload, forward_time
from paceline.roofline.flags import launch_flags
from paceline.roofline.grid import Grid
from paceline.roofline.scenario import FORMAT, Scenario
from paceline.roofline.stated import StatedDrafter
from paceline.roofline.views import BY_DRAFT_LENGTH, MS, Drafted, Target, measure, padded

CEILING, CALIBRATED = "ceiling", "calibrated"
NOTICED = 1.01
Tiers = Mapping[str, Options]


def answer(scenario: Scenario) -> dict[str, Any]:
    """Raises InvalidRequest where the batch does not fit, or the context is not the model's."""
    tiers = {
        tier: replace(scenario.options, calibration=calibration)
        for tier, calibration in ((CEILING, IDEAL), (CALIBRATED, scenario.calibration))
    }
    here = Workload(scenario.batch, 1, scenario.context)
    model, device = scenario.architecture, scenario.hardware
    found = check_fits(model, device, here, tiers[CEILING])
    plain = _plain(scenario, tiers, here)
    by_batch = _target(scenario, tiers, [(b, scenario.context) for b in scenario.batches])
    by_context = _target(scenario, tiers, [(scenario.batch, c) for c in scenario.contexts])
    drafters = [_drafter(scenario, each, by_batch, by_context) for each in scenario.drafters]
    return {
        "format": FORMAT,
        "scenario": dict(scenario.stated),
        "model": _model(scenario),
        "hardware": _device(scenario),
        "calibration": {"name": scenario.calibration_name, **scenario.calibration.to_dict()},
        "capacity": {"max_batch": found.max_batch},
        "ar": plain,
        "ar_by_batch": _plain_by_batch(scenario, by_batch),
        "drafters": drafters,
        "notes": _notes(scenario, found.max_batch, drafters),
    }


def _target(scenario: Scenario, tiers: Tiers, places: Sequence[tuple[int, int]]) -> Target:
    """Over the places that fit; both lists are sorted, so that those that do not are the last."""
    longest = max(drafter.longest(scenario.max_draft) for drafter in scenario.drafters)
    model, device, options = scenario.architecture, scenario.hardware, tiers[CEILING]
    most = {
        context: max_batch(model, device, Workload(1, 1, context), options)
        for context in {context for _, context in places}
    }
    loads = [Workload(batch, 1, context) for batch, context in places if batch <= most[context]]
    grid = Grid(device, tuple(loads), tiers)
    return Target(scenario, grid, grid.forwards(model, range(1, longest + 2)))


def _plain(scenario: Scenario, tiers: Tiers, here: Workload) -> dict[str, Any]:
    found = {}
    for tier, options in tiers.items():
        time = forward_time(scenario.architecture, scenario.hardware, here, options)
        per_request = 1 / time.total
        found[tier] = {
            "step_ms": MS * time.total,
            "tpot_ms": MS * time.total,
            "tokens_per_second_per_request": per_request,
            "tokens_per_second_per_device": here.batch * per_request / options.devices,
            "components": {name: MS * value for name, value in time.components.items()},
        }
    return found


def _plain_by_batch(scenario: Scenario, target: Target) -> dict[str, Any]:
    found: dict[str, Any] = {"batch": list(scenario.batches)}
    batch = np.array([load.batch for load in target.grid.loads])
    for tier, seconds in target.seconds.items():
        each = 1 / seconds[:, 0]
        device = batch * each / scenario.options.devices
        found[tier] = {
            "tokens_per_second_per_request": padded(each.tolist(), scenario.batches),
            "tokens_per_second_per_device": padded(device.tolist(), scenario.batches),
        }
    return found


def _model(scenario: Scenario) -> dict[str, Any]:
    model = scenario.architecture
    return {
        "name": model.name,
        "family": model.family,
        "parameters": model.parameters(),
        "active_parameters": model.active_parameters(),
        "weight_bytes": model.weight_bytes(),
        "kv_bytes_per_token": model.kv_bytes_per_token(),
        "state_bytes": model.state_bytes(),
    }


def _device(scenario: Scenario) -> dict[str, Any]:
    device = scenario.hardware
    return {
        "name": device.name,
        "devices": scenario.options.devices,
        "memory": device.memory,
        "memory_bandwidth": device.memory_bandwidth,
        "source": device.source,
    }


# -- one drafter -----------------------------------------------------------------------------------


def _drafter(
    scenario: Scenario, drafter: StatedDrafter, by_batch: Target, by_context: Target
) -> dict[str, Any]:
    drafted = measure(by_batch, drafter)
    place = scenario.batches.index(scenario.batch)
    fitting = int(drafted.fits[place].sum())  # longer drafts take more memory, never less
    curve = _curve(drafted, place, fitting)
    best = {
        tier: _optimum(scenario, options, curve, tier, int(drafted.best(tier)[place]))
        for tier, options in by_batch.grid.tiers.items()
    }
    served = best[CALIBRATED]["draft_length"]
    return {
        "name": drafter.name,
        "kind": drafter.kind,
        "block": drafter.block,
        "max_draft": fitting - 1,
        "acceptance": drafter.acceptance.conditional(fitting - 1).tolist(),
        "curve": curve,
        "optimum": best,
        "by_batch": {
            "batch": list(scenario.batches),
            "max_draft": drafted.longest(scenario.batches),
            **{tier: drafted.optima(tier, scenario.batches) for tier in drafted.tiers},
        },
        "by_context": _by_context(scenario, drafter, by_context),
        "heat_map": {
            "batch": list(scenario.batches),
            "draft_length": list(range(len(drafted.accepted))),
            **{tier: drafted.map(tier, scenario.batches) for tier in drafted.tiers},
        },
        "commits": drafter.acceptance.commit_probabilities(served).tolist(),
        "flags": launch_flags(
            drafter.kind,
            served,
            model=scenario.checkpoint or "MODEL",
            family=scenario.architecture.family,
            drafter=drafter.checkpoint,
            options=scenario.options,
            experts=scenario.architecture.has(Experts),
        ),
    }


def _curve(drafted: Drafted, place: int, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "draft_length": list(range(count)),
        "acceptance_length": drafted.accepted[:count].tolist(),
    }
    for tier, numbers in drafted.tiers.items():
        found[tier] = {name: numbers[name][place, :count].tolist() for name in BY_DRAFT_LENGTH}
    return found


def _optimum(
    scenario: Scenario, options: Options, curve: Mapping[str, Any], tier: str, length: int
) -> dict[str, Any]:
    load = Workload(scenario.batch, length + 1, scenario.context)
    time = forward_time(scenario.architecture, scenario.hardware, load, options)
    components = {name: MS * value for name, value in time.components.items()}
    return {
        "draft_length": length,
        "acceptance_length": curve["acceptance_length"][length],
        **{name: curve[tier][name][length] for name in BY_DRAFT_LENGTH},
        "components": {**components, "draft": curve[tier]["draft_ms"][length]},
    }


def _by_context(
    scenario: Scenario, drafter: StatedDrafter, target: Target
) -> dict[str, Any] | None:
    if not scenario.contexts:
        return None
    drafted = measure(target, drafter)
    return {
        "context": list(scenario.contexts),
        "max_draft": drafted.longest(scenario.contexts),
        **{tier: drafted.optima(tier, scenario.contexts) for tier in drafted.tiers},
    }


def _notes(scenario: Scenario, most: int, drafters: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    for drafter, shown in zip(scenario.drafters, drafters, strict=True):
        name, longest = drafter.name, drafter.longest(scenario.max_draft)
        if longest < scenario.max_draft:
            why = "its block" if longest == drafter.block else "as far as its acceptance is known"
            why = "its max_draft" if longest == drafter.max_draft else why
            found.append(f"{name}: drafts of up to {longest}, {why}")
        if shown["max_draft"] < longest:
            most_draft = shown["max_draft"]
            what = f"drafts longer than {most_draft}" if most_draft else "its weights and drafts"
            found.append(f"{name}: {what} do not fit the memory beside the requests")
    if any(_above(shown["optimum"]) for shown in drafters):
        found.append(
            "the ceiling is one of tokens per second at the datasheet's rates; overheads slow "
            "steps without drafts as well, so that a calibrated speedup may be the larger one"
        )
    if most < max(scenario.batches):
        found.append(f"batches above {most} do not fit at a context of {scenario.context}")
    return found


def _above(best: Mapping[str, Any]) -> bool:
    return bool(best[CALIBRATED]["speedup"] > NOTICED * best[CEILING]["speedup"])
