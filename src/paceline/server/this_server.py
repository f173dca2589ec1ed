"""Describes what this server runs as a scenario of the calculator: the served model, the machine by
the costs that the engine has measured, and the acceptance that was seen."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from paceline.core.rounds import ratio
from paceline.core.spec_line import SpecLine
from paceline.drafters.base import Drafter
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.costs import DraftCost
from paceline.engine.engine import Engine
from paceline.engine.machine import total_memory
from paceline.engine.startup import bandwidth_bound
from paceline.engine.step_cost import StepCost
from paceline.models.config import ModelConfig
from paceline.roofline.architecture import Architecture, read_architecture
from paceline.roofline.cost import Deployment
from paceline.roofline.device import Calibration, Hardware
from paceline.roofline.fit import Case, MeasuredStep, fit_together
from paceline.server.errors import ApiError
from paceline.server.live import KEPT, Live
from paceline.server.page_answers import (
    LiveSnapshot,
    SeenAcceptance,
    ServedAcceptance,
    ServedCost,
    ServedMachine,
    ServedScenario,
)
from paceline.server.responses import picked

NUMBERS = {"bfloat16": "bf16", "float32": "fp32"}  # a dtype of the engine as the roofline calls it
QUANTIZED = {"cpu": "int8", "cuda": "fp8"}
UNKNOWNS = ("memory_efficiency", "compute_efficiency", "overlap", "step_overhead")
BATCHES = (1, 2, 4, 8, 16)  # requests of the steps that the calibration is fitted to
GUESS = 0.5  # acceptance of a drafter that has not drafted yet
MOST_DRAFTERS = 3  # of a scenario
FRESH = 10.0  # seconds that a fit is used before the costs are fitted again


@dataclass(frozen=True, slots=True)
class ServerFit:
    """The machine and the calibration that explain the engine's costs of steps. `ar_seconds` is the
    time of a step of one row."""

    stated: dict[str, object]  # the model's config, as Hugging Face writes it
    precision: str
    machine: Hardware
    calibration: Calibration
    median_error: float
    ar_seconds: float


class ThisServer:
    """Makes the scenario. The fit runs in a thread; other computations that take `turn` wait for
    it."""

    def __init__(self, serves: AsyncEngine, live: Live, turn: CapacityLimiter) -> None:
        self._serves, self._live, self._turn = serves, live, turn
        self._fit: ServerFit | None = None
        self._fitted = 0.0  # in monotonic seconds

    async def scenario(self) -> ServedScenario:
        """Return the server's current scenario. The first call reads the weights a few times, for
        the bandwidth. Raises ApiError (404) for a network without a config."""
        engine = self._serves.engine
        async with self._turn:
            fit = self._fit
            if fit is None or time.monotonic() - self._fitted > FRESH:
                fit = self._fit = await run_sync(fit_server, engine)
                self._fitted = time.monotonic()
        # the counters of Live belong to the event loop, which computes no curves for this
        return served_scenario(engine, fit, self._live.snapshot(KEPT, since=math.inf))


def fit_server(engine: Engine) -> ServerFit:
    """Fit the calculator to the costs that the engine has measured. Raises ApiError (404)."""
    config, cost = engine.config, engine.scheduler.cost
    shape = getattr(engine.runner.network, "config", None)
    if not isinstance(shape, ModelConfig):
        raise ApiError(404, "no scenario: the served network has no config")
    number = NUMBERS[config.dtype]
    precision = QUANTIZED[config.device] if config.quantize else number
    stated = hf_config(shape)
    model = read_architecture(stated, precision=precision, name=engine.model_name)
    points = list(measured_steps(cost, config.max_num_seqs))
    machine = this_machine(engine, model, points, number)
    unknowns = UNKNOWNS[: len(points)]  # a small token budget leaves fewer points
    fit = fit_together([Case(points, Deployment(model, machine))], parameters=unknowns)
    machine, calibration = within_datasheet(machine, fit.calibration)
    return ServerFit(stated, precision, machine, calibration, fit.median_error, points[0].seconds)


def served_scenario(engine: Engine, fit: ServerFit, snapshot: LiveSnapshot) -> ServedScenario:
    """Return the scenario of a fitted server with the acceptance that `snapshot` has."""
    costs = engine.drafting.costs.drafters
    offered, specs = engine.admission.drafters, engine.lineup.specs
    seen = {name: seen_acceptance(snapshot, name) for name in offered}
    drafters = [
        stated_drafter(
            drafter,
            costs.get(name, DraftCost()).draft_seconds([drafter.max_draft_len]),
            fit.ar_seconds,
            acceptance(seen[name]),
            SpecLine.parse(specs.get(name, name)).kind,
        )
        for name, drafter in list(offered.items())[:MOST_DRAFTERS]
    ]
    return {
        "model": {"config": fit.stated, "name": engine.model_name},
        "hardware": picked(ServedMachine, fit.machine),
        "precision": fit.precision,
        "calibration": fit.calibration.model_dump(),
        "median_error": fit.median_error,
        "drafters": drafters,
        "seen": {name: found for name, found in seen.items() if found is not None},
        "context": max(1, min(1024, engine.max_model_len // 2)),
    }


def hf_config(shape: ModelConfig) -> dict[str, object]:
    """Return the shape of a served model as a Hugging Face config has it."""
    return {
        "model_type": shape.family,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "max_position_embeddings": shape.max_position_embeddings,
    }


def measured_steps(cost: StepCost, widest: int) -> Iterator[MeasuredStep]:
    """Yield steps of the engine's own table of costs; rows beyond its grid were not measured."""
    for batch in (count for count in BATCHES if count <= widest):
        for rows in cost.rows:
            if batch * rows <= cost.rows[-1]:
                yield MeasuredStep(batch, rows, rows, cost(batch * rows, batch))


def this_machine(
    engine: Engine, model: Architecture, points: list[MeasuredStep], number: str
) -> Hardware:
    """Return this machine: the bandwidth of reading the weights, and the arithmetic that its own
    steps have reached, which is the least that it can do."""
    flops = 2.0 * model.active_parameters()
    reached = max(flops * point.batch * point.rows / point.seconds for point in points)
    on_cpu = engine.config.device == "cpu"
    planned = engine.plan.weight_bytes + engine.plan.kv_bytes
    return Hardware(
        name="this-server",
        memory_bandwidth=engine.runner.network.streamed_bytes / bandwidth_bound(engine),
        peak={"bf16": reached, "fp32": reached, number: reached},
        memory=float(total_memory() if on_cpu else planned),
        kind="cpu" if on_cpu else "nvidia-gpu",
        source="measured by this server: reading its weights, and its own steps",
    )


def within_datasheet(machine: Hardware, found: Calibration) -> tuple[Hardware, Calibration]:
    """Return the same step times with efficiencies of at most 1. Where the fit found more, the
    machine gets a higher bandwidth or peak."""
    more_memory = max(1.0, found.memory_efficiency)
    more_compute = max(1.0, found.compute_efficiency)
    machine = machine.model_copy(
        update={
            "memory_bandwidth": machine.memory_bandwidth * more_memory,
            "peak": {name: rate * more_compute for name, rate in machine.peak.items()},
        }
    )
    memory, compute = found.memory_efficiency / more_memory, found.compute_efficiency / more_compute
    return machine, found.model_copy(
        update={
            "memory_efficiency": memory,
            "attention_memory_efficiency": memory,
            "sampling_efficiency": memory,
            "compute_efficiency": compute,
            "attention_compute_efficiency": compute,
        }
    )


def stated_drafter(
    drafter: Drafter, seconds: float, step: float, accepted: ServedAcceptance, kind: str
) -> ServedCost:
    """Return a drafter whose longest draft takes `seconds`, beside a step without drafts."""
    longest, passes = drafter.max_draft_len, 1
    network = bool(drafter.weight_bytes)
    if network and kind == "draft_model":
        passes = longest
    else:
        kind = "dflash" if network else "suffix"
    return {
        "name": drafter.name,
        "kind": kind,
        "cost": seconds / passes / step if network else None,
        "block": longest if kind == "dflash" else None,
        "seconds": None if network else seconds,
        "acceptance": accepted,
    }


def seen_acceptance(snapshot: LiveSnapshot, name: str) -> SeenAcceptance | None:
    """Return the AL (incl. bonus) of rounds with drafts, and their mean draft length; None where a
    drafter has not drafted."""
    counts = [g["speculation"] for g in snapshot["groups"] if g["drafter"] == name]
    rounds = [count["draft_rounds"] for count in counts]
    drafted = ratio([count["draft_tokens"] for count in counts], rounds)
    accepted = ratio([count["accepted_tokens"] for count in counts], rounds)
    if drafted is None or accepted is None or drafted < 1:
        return None
    return {"rounds": sum(rounds), "acceptance_length": 1 + accepted, "draft_length": drafted}


def acceptance(seen: SeenAcceptance | None) -> ServedAcceptance:
    """Return what was seen as a scenario states it, or a guess."""
    if seen is None:
        return {"alpha": GUESS, "al": None, "draft_length": None}
    length = math.ceil(seen["draft_length"])
    al = min(round(seen["acceptance_length"], 3), length + 1.0)
    return {"alpha": None, "al": al, "draft_length": length}
