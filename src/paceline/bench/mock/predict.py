"""Predictions of the roofline beside mocked measurements: without overheads and calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.bench.mock.measure import Measured
from paceline.bench.mock.setup import MockDrafting, MockTarget, named
from paceline.bench.steps.machine import NUMBERS
from paceline.drafters.base import Networked
from paceline.drafters.mock import MockDrafter
from paceline.engine.engine import Engine
from paceline.models.json_files import read_json
from paceline.models.mocked import is_dflash
from paceline.roofline.architecture import Architecture, read_architecture
from paceline.roofline.architecture.config import MODULES, PARTS
from paceline.roofline.cost import (
    Deployment,
    DrafterCost,
    SpeedupRow,
    Workload,
    free_drafts,
    share_of_step,
    speedup_curve,
)
from paceline.roofline.cost.drafters import block, small_model
from paceline.roofline.device import IDEAL, Calibration, Hardware

ROOFLINE, CALIBRATED = "roofline", "calibrated"


@dataclass(frozen=True, slots=True)
class Compared:
    """A tier's prediction for one cell, and measured ÷ predicted with its interval."""

    predicted: SpeedupRow
    ratio: float
    interval: tuple[float, float]


def predict(
    measured: Sequence[Measured],
    target: MockTarget,
    drafting: MockDrafting,
    engine: Engine,
    hardware: Hardware,
    calibration: Calibration | None = None,
) -> list[dict[str, Compared]]:
    """Predict each cell, by tier, at the context that was measured."""
    number = NUMBERS[engine.config.dtype]
    precision = {part: number for part in PARTS if part != "state"}
    model = read_architecture(target.config_json, precision=precision, name=target.name)
    drafter = drafter_cost(drafting, engine, model)
    tiers = {ROOFLINE: IDEAL} if calibration is None else {ROOFLINE: IDEAL, CALIBRATED: calibration}

    def compare(result: Measured, calibration: Calibration) -> Compared:
        cell = result.cell
        row = speedup_curve(
            Deployment(model, hardware),
            drafter,
            cell.acceptance,
            Workload(cell.batch, 1, round(result.context)),
            calibration,
            max_draft=cell.draft_length,
        )[-1]
        low, high = result.speedup_interval
        interval = low / row.speedup, high / row.speedup
        return Compared(row, result.speedup / row.speedup, interval)

    return [{tier: compare(result, each) for tier, each in tiers.items()} for result in measured]


def drafter_cost(drafting: MockDrafting, engine: Engine, target: Architecture) -> DrafterCost:
    """Price the drafter that ran: its network in the numbers that it ran in, or the whole layers
    that stand for a share."""
    (drafter,) = engine.drafters.values()
    if drafting.config is not None:
        assert isinstance(drafter, Networked) and drafter.network is not None
        plain = NUMBERS[engine.config.dtype]
        precision = {part: drafter.network.number or plain for part in MODULES} | {"kv": plain}
        with named("drafter_config"):
            hf = read_json(drafting.config)
            if is_dflash(hf):
                return block(hf, target, precision=precision)
            return small_model(hf, precision=precision)
    share = drafter.share if isinstance(drafter, MockDrafter) else None
    return free_drafts() if share is None else share_of_step(share.fraction, drafting.block)
