"""From a scenario to the answer that `scenario` documents: every view of one prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core import InvalidRequest
from paceline.roofline.calibration import IDEAL
from paceline.roofline.cost import Options, Workload, forward_time
from paceline.roofline.drafting import Fraction
from paceline.roofline.flags import launch_flags
from paceline.roofline.grid import forward_times
from paceline.roofline.scenario import FORMAT, MOST_BATCH, Scenario
from paceline.roofline.stated import StatedDrafter

CEILING, CALIBRATED = "ceiling", "calibrated"
MS = 1e3
BY_DRAFT_LENGTH = ("speedup", "step_ms", "verify_ms", "draft_ms", "tpot_ms",
                   "tokens_per_second_per_request", "tokens_per_second_per_device",
                   "break_even_length")  # fmt: skip
AT_OPTIMUM = ("draft_length", "acceptance_length", "speedup", "tpot_ms",
              "tokens_per_second_per_request", "tokens_per_second_per_device")  # fmt: skip


@dataclass(frozen=True)
class Loads:
    """Batches over contexts, and how long a target's forward of 1 … n rows a request takes there:
    `seconds[tier]` is [loads, rows]."""

    loads: tuple[Workload, ...]
    seconds: Mapping[str, np.ndarray]


def answer(scenario: Scenario) -> dict[str, Any]:
    """Raises InvalidRequest where the batch does not fit."""
    options = {
        tier: Options(tensor_parallel=scenario.tensor_parallel, calibration=calibration)
        for tier, calibration in ((CEILING, IDEAL), (CALIBRATED, scenario.calibration))
    }
    most = most_requests(scenario, scenario.context)
    if scenario.batch > most:
        raise InvalidRequest("batch", scenario.batch, _fits(scenario, most))
    batches = [batch for batch in scenario.batches if batch <= most]
    contexts = [c for c in scenario.contexts if scenario.batch <= most_requests(scenario, c)]
    here = Workload(scenario.batch, 1, scenario.context)
    plain = {
        tier: forward_time(scenario.architecture, scenario.hardware, here, each)
        for tier, each in options.items()
    }
    by_batch = _measure(scenario, options, [(b, scenario.context) for b in batches])
    by_context = _measure(scenario, options, [(scenario.batch, c) for c in contexts])
    place = batches.index(scenario.batch)
    return {
        "format": FORMAT,
        "scenario": dict(scenario.stated),
        "model": _model(scenario),
        "hardware": _device(scenario),
        "calibration": {"name": scenario.calibration_name, **scenario.calibration.to_dict()},
        "capacity": {"max_batch": most},
        "ar": {
            tier: {
                "step_ms": MS * time.total,
                "tpot_ms": MS * time.total,
                "tokens_per_second_per_request": 1 / time.total,
                "tokens_per_second_per_device": scenario.batch / time.total / _devices(scenario),
                "components": {name: MS * value for name, value in time.components.items()},
            }
            for tier, time in plain.items()
        },
        "ar_by_batch": _plain_by_batch(scenario, by_batch),
        "drafters": [
            _drafter(scenario, drafter, options, by_batch, by_context, place)
            for drafter in scenario.drafters
        ],
        "notes": _notes(scenario, most),
    }


def most_requests(scenario: Scenario, context: int) -> int:
    """That fit the memory besides the weights."""
    model, devices = scenario.architecture, scenario.tensor_parallel
    free = scenario.hardware.memory * devices - model.weight_bytes()
    each = model.cache_bytes(context)
    return max(0, int(min(free / each if each else MOST_BATCH, MOST_BATCH)))


def _fits(scenario: Scenario, most: int) -> str:
    where = f"{_devices(scenario)} × {scenario.hardware.name}"
    if most < 1:
        return f"a model whose weights and one request of {scenario.context} tokens fit {where}"
    return f"at most {most}, which fit the memory of {where} at a context of {scenario.context}"


def _devices(scenario: Scenario) -> int:
    return scenario.tensor_parallel


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
        "devices": _devices(scenario),
        "memory": device.memory,
        "memory_bandwidth": device.memory_bandwidth,
        "source": device.source,
    }


def _measure(
    scenario: Scenario, options: Mapping[str, Options], places: Sequence[tuple[int, int]]
) -> Loads:
    longest = max(drafter.longest(scenario.max_draft) for drafter in scenario.drafters)
    loads = tuple(Workload(batch, 1, context) for batch, context in places)
    rows = range(1, longest + 2)
    points = [Workload(load.batch, row, load.context) for load in loads for row in rows]
    if not points:
        return Loads(loads, {tier: np.zeros((0, len(rows))) for tier in options})
    found = forward_times(scenario.architecture, scenario.hardware, points, options)
    return Loads(loads, {tier: each.reshape(len(loads), -1) for tier, each in found.items()})


def _plain_by_batch(scenario: Scenario, by_batch: Loads) -> dict[str, Any]:
    found: dict[str, Any] = {"batch": list(scenario.batches)}
    batch = np.array([load.batch for load in by_batch.loads])
    for tier, seconds in by_batch.seconds.items():
        per_request = 1 / seconds[:, 0]
        found[tier] = {
            "tokens_per_second_per_request": _padded(per_request, scenario.batches),
            "tokens_per_second_per_device": _padded(
                batch * per_request / _devices(scenario), scenario.batches
            ),
        }
    return found


def _padded(values: np.ndarray, places: Sequence[int]) -> list[float | None]:
    """Places are sorted, so that those that do not fit are the last ones."""
    return [*values.tolist(), *[None] * (len(places) - len(values))]


# -- one drafter -----------------------------------------------------------------------------------


def _drafter(
    scenario: Scenario,
    drafter: StatedDrafter,
    options: Mapping[str, Options],
    by_batch: Loads,
    by_context: Loads,
    place: int,
) -> dict[str, Any]:
    longest = drafter.longest(scenario.max_draft)
    lengths = list(range(longest + 1))
    accepted = 1 + np.concatenate(([0.0], np.cumsum(drafter.acceptance.survival(longest))))
    tables = {
        tier: _tables(scenario, drafter, each, by_batch, tier, accepted)
        for tier, each in options.items()
    }
    curve: dict[str, Any] = {"draft_length": lengths, "acceptance_length": accepted.tolist()}
    best: dict[str, Any] = {}
    for tier, table in tables.items():
        curve[tier] = {name: table[name][place].tolist() for name in BY_DRAFT_LENGTH}
        length = int(np.argmax(table["speedup"][place]))
        row = {name: curve[tier][name][length] for name in BY_DRAFT_LENGTH}
        best[tier] = {"draft_length": length, "acceptance_length": float(accepted[length]), **row}
        best[tier]["components"] = _components(scenario, options[tier], best[tier])
    served = best[CALIBRATED]["draft_length"]
    return {
        "name": drafter.name,
        "kind": drafter.kind,
        "block": drafter.block,
        "max_draft": longest,
        "acceptance": drafter.acceptance.conditional(longest).tolist(),
        "curve": curve,
        "optimum": best,
        "by_batch": {
            "batch": list(scenario.batches),
            **{tier: _optima(table, accepted, scenario.batches) for tier, table in tables.items()},
        },
        "by_context": _by_context(scenario, drafter, options, by_context, accepted),
        "heat_map": {
            "batch": list(scenario.batches),
            "draft_length": lengths,
            **{tier: _rows(table, scenario.batches) for tier, table in tables.items()},
        },
        "commits": drafter.acceptance.commit_probabilities(served).tolist(),
        "flags": launch_flags(
            drafter.kind,
            served,
            model=scenario.checkpoint or "MODEL",
            drafter=drafter.checkpoint,
            tensor_parallel=scenario.tensor_parallel,
        ),
    }


def _tables(
    scenario: Scenario,
    drafter: StatedDrafter,
    options: Options,
    loads: Loads,
    tier: str,
    accepted: np.ndarray,
) -> dict[str, np.ndarray]:
    """Every number by load and draft length, [loads, γ + 1]; the plain twin: `speedup_curve`."""
    verify = loads.seconds[tier][:, : len(accepted)]
    plain = verify[:, :1]
    draft = _draft_seconds(scenario, drafter, options, loads, len(accepted))
    step = verify + draft
    batch = np.array([[load.batch] for load in loads.loads]).reshape(-1, 1)
    per_request = accepted / step
    return {
        "speedup": per_request * plain,
        "step_ms": MS * step,
        "verify_ms": MS * verify,
        "draft_ms": MS * draft,
        "tpot_ms": MS * step / accepted,
        "tokens_per_second_per_request": per_request,
        "tokens_per_second_per_device": batch * per_request / _devices(scenario),
        "break_even_length": step / plain,
    }


def _draft_seconds(
    scenario: Scenario, drafter: StatedDrafter, options: Options, loads: Loads, count: int
) -> np.ndarray:
    """Of drafts of 0 … count - 1 tokens, [loads, count]."""
    model, device, cost = scenario.architecture, scenario.hardware, drafter.cost
    found = np.zeros((len(loads.loads), count))
    for index, load in enumerate(loads.loads):
        if isinstance(cost, Fraction):  # each pass costs what the first does
            single = cost.time(1, model, device, load, options)
            found[index] = single * np.ceil(np.arange(count) / cost.per_block)
        else:
            for length in range(1, count):
                found[index, length] = cost.time(length, model, device, load, options)
    return found


def _components(scenario: Scenario, options: Options, row: Mapping[str, Any]) -> dict[str, float]:
    load = Workload(scenario.batch, row["draft_length"] + 1, scenario.context)
    time = forward_time(scenario.architecture, scenario.hardware, load, options)
    parts = {name: MS * value for name, value in time.components.items()}
    return {**parts, "draft": row["draft_ms"]}


def _optima(
    table: Mapping[str, np.ndarray], accepted: np.ndarray, places: Sequence[int]
) -> dict[str, list[Any]]:
    """What is best at each place; argmax takes the shorter of equally good drafts."""
    best = np.argmax(table["speedup"], axis=1)
    chosen = {name: each[np.arange(len(best)), best] for name, each in table.items()}
    chosen |= {"draft_length": best, "acceptance_length": accepted[best]}
    return {name: _padded(chosen[name], places) for name in AT_OPTIMUM}


def _rows(table: Mapping[str, np.ndarray], places: Sequence[int]) -> list[list[float] | None]:
    rows = table["speedup"].tolist()
    return [*rows, *[None] * (len(places) - len(rows))]


def _by_context(
    scenario: Scenario,
    drafter: StatedDrafter,
    options: Mapping[str, Options],
    loads: Loads,
    accepted: np.ndarray,
) -> dict[str, Any] | None:
    if not scenario.contexts:
        return None
    found: dict[str, Any] = {"context": list(scenario.contexts)}
    for tier, each in options.items():
        table = _tables(scenario, drafter, each, loads, tier, accepted)
        found[tier] = _optima(table, accepted, scenario.contexts)
    return found


def _notes(scenario: Scenario, most: int) -> list[str]:
    found = []
    for drafter in scenario.drafters:
        longest = drafter.longest(scenario.max_draft)
        if longest < scenario.max_draft:
            why = "its block" if longest == drafter.block else "as far as its acceptance is known"
            why = "its max_draft" if longest == drafter.max_draft else why
            found.append(f"{drafter.name}: drafts of up to {longest}, {why}")
    if most < max(scenario.batches):
        found.append(f"more than {most} requests of {scenario.context} tokens do not fit")
    return found
