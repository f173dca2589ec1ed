"""Predictions of the roofline beside mocked measurements: ceiling and calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.bench.mock.measure import Measured
from paceline.bench.mock.setup import MockDrafting, MockTarget, named_drafter
from paceline.bench.steps.machine import NUMBERS
from paceline.drafters.mock import MockDrafter
from paceline.engine.engine import Engine
from paceline.models.loader import read_json
from paceline.models.mocked import is_dflash
from paceline.roofline.architecture import Architecture, read_architecture
from paceline.roofline.architecture.config import PARTS
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

CEILING, CALIBRATED = "ceiling", "calibrated"


@dataclass(frozen=True, slots=True)
class Compared:
    """A tier's prediction for one cell, and measured ÷ predicted with the interval of what was
    measured."""

    predicted: SpeedupRow
    ratio: float
    interval: tuple[float, float]


class Predictions:
    """The roofline for one mocked engine. Without a calibration there is the ceiling alone."""

    def __init__(
        self,
        target: MockTarget,
        drafting: MockDrafting,
        engine: Engine,
        hardware: Hardware,
        calibration: Calibration | None = None,
    ) -> None:
        number = NUMBERS[engine.config.dtype]
        precision = {part: number for part in PARTS if part != "state"}
        model = read_architecture(target.config_json, precision=precision, name=target.name)
        self._deployment = Deployment(model, hardware)
        self._drafter = drafter_cost(drafting, engine, model, precision)
        self._tiers = {CEILING: IDEAL}
        if calibration is not None:
            self._tiers[CALIBRATED] = calibration

    def of(self, measured: Measured) -> Mapping[str, Compared]:
        """Predict one cell at the context that was measured, by tier."""
        return {tier: self._compare(measured, each) for tier, each in self._tiers.items()}

    def _compare(self, measured: Measured, calibration: Calibration) -> Compared:
        cell = measured.cell
        row = speedup_curve(
            self._deployment,
            self._drafter,
            cell.acceptance,
            Workload(cell.batch, 1, round(measured.context)),
            calibration,
            max_draft=cell.draft_length,
        )[-1]
        low, high = measured.speedup_interval
        interval = low / row.speedup, high / row.speedup
        return Compared(row, measured.speedup / row.speedup, interval)


def drafter_cost(
    drafting: MockDrafting, engine: Engine, target: Architecture, precision: Mapping[str, str]
) -> DrafterCost:
    """Price the drafter that ran: its network, or the whole layers that stand for a share."""
    if drafting.config is not None:
        with named_drafter():
            hf = read_json(drafting.config)
            if is_dflash(hf):
                return block(hf, target)
            return small_model(hf, precision=precision)
    (drafter,) = engine.drafters.values()
    share = drafter.share if isinstance(drafter, MockDrafter) else None
    return free_drafts() if share is None else share_of_step(share.fraction, drafting.block)
