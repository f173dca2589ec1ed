"""The roofline's word on what was mocked: ceiling and calibrated, beside what was measured."""

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
from paceline.roofline import drafters
from paceline.roofline.architecture import Architecture, read_architecture
from paceline.roofline.calibration import IDEAL, Calibration
from paceline.roofline.cost import Options, Workload
from paceline.roofline.drafting import DrafterCost, Fraction, Ideal
from paceline.roofline.formats import PARTS
from paceline.roofline.hardware import Hardware
from paceline.roofline.speedup import SpeedupRow, speedup_curve

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
        self._architecture = read_architecture(
            target.config_json, precision=precision, name=target.name
        )
        self._hardware = hardware
        self._drafter = drafter_cost(drafting, engine, self._architecture, precision)
        self._tiers = {CEILING: IDEAL}
        if calibration is not None:
            self._tiers[CALIBRATED] = calibration

    def of(self, measured: Measured) -> Mapping[str, Compared]:
        """By tier, at the context that was measured."""
        return {tier: self._compare(measured, each) for tier, each in self._tiers.items()}

    def _compare(self, measured: Measured, calibration: Calibration) -> Compared:
        cell = measured.cell
        row = speedup_curve(
            self._architecture,
            self._hardware,
            self._drafter,
            cell.acceptance,
            Workload(cell.batch, 1, round(measured.context)),
            max_draft=cell.draft_length,
            options=Options(calibration=calibration),
        )[-1]
        low, high = measured.speedup_interval
        interval = low / row.speedup, high / row.speedup
        return Compared(row, measured.speedup / row.speedup, interval)


def drafter_cost(
    drafting: MockDrafting, engine: Engine, target: Architecture, precision: Mapping[str, str]
) -> DrafterCost:
    """What was really spent: whole layers, not the share that was asked for; or the network."""
    if drafting.config is not None:
        with named_drafter():
            hf = read_json(drafting.config)
            if is_dflash(hf):
                return drafters.block(hf, target)
            return drafters.small_model(hf, precision=precision)
    (drafter,) = engine.drafters.values()
    share = drafter.share if isinstance(drafter, MockDrafter) else None
    return Ideal() if share is None else Fraction(share.fraction, drafting.block)
