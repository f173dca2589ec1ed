"""One drafter over a grid of batches or contexts: its numbers by draft length, and the optima."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np

from paceline.roofline.architecture.work import Workload
from paceline.roofline.cost.capacity import capacity
from paceline.roofline.cost.grid import Grid, Seconds
from paceline.roofline.scenario.answer import (
    TIERS,
    Best,
    BestNumbers,
    DraftNumbers,
    Fits,
    Numbers,
    Throughput,
    Tier,
    by_tier,
)
from paceline.roofline.scenario.drafters import PricedDrafter

MS = 1e3
T = TypeVar("T")


@dataclass(frozen=True)
class PlainSteps:
    """The target's forwards of 1 … n rows a request, [loads, rows], over the places (batches, or
    contexts) that fit: the first ones of `places`."""

    grid: Grid
    places: tuple[int, ...]
    seconds: Seconds

    def per_device(self, per_request: np.ndarray) -> np.ndarray:
        """Tokens per second of each device, from those of each request [loads, ...]."""
        batch = np.array([[load.batch] for load in self.grid.loads]).reshape(-1, 1)
        shared: np.ndarray = batch * per_request / self.grid.deployment.devices
        return shared

    def front(self, tier: Tier) -> Throughput:
        """Throughput without speculation by place."""
        per_request = 1 / self.seconds[tier][:, :1]
        return {
            "tokens_per_second_per_request": self.padded(per_request[:, 0].tolist()),
            "tokens_per_second_per_device": self.padded(
                self.per_device(per_request)[:, 0].tolist()
            ),
        }

    def padded(self, values: list[T]) -> list[T | None]:
        """Values by place; None for the places that do not fit."""
        return [*values, *[None] * (len(self.places) - len(values))]


@dataclass(frozen=True)
class DrafterView:
    """One drafter there. `accepted` is the AL by draft length; `fits` tells the drafts that the
    memory holds, [loads, draft length + 1] (length 0 always: there is no drafter then). `tiers` has
    each of DraftNumbers, [loads, draft length + 1]."""

    steps: PlainSteps
    accepted: np.ndarray
    fits: np.ndarray
    tiers: Mapping[Tier, Mapping[str, np.ndarray]]

    def fitting(self) -> list[Fits]:
        """Return what the memory of each place holds."""
        held: list[Fits] = ["drafts" if row[1:].any() else "no draft" for row in self.fits]
        beyond: list[Fits] = ["nothing"] * (len(self.steps.places) - len(held))
        return held + beyond

    def lengths(self, tier: Tier) -> np.ndarray:
        """Return the best draft length of each load; of equally good ones the shortest."""
        speedup = np.where(self.fits, self.tiers[tier]["speedup"], 0.0)
        return cast(np.ndarray, np.argmax(speedup, axis=1))

    def best(self) -> Best:
        """The optimum by place; null where no draft fits, and a `max_draft` of 0 where the memory
        holds AR alone."""
        longest = (self.fits.sum(axis=1) - 1).tolist()
        return {
            "fits": self.fitting(),
            "max_draft": self.steps.padded(longest),
            **by_tier(self._optima),
        }

    def _optima(self, tier: Tier) -> BestNumbers:
        best = self.lengths(tier)
        fits = cast(list[bool], self.fits[:, 1:].any(axis=1).tolist())
        beyond: list[None] = [None] * (len(self.steps.places) - len(fits))

        def shown(values: list[T]) -> list[T | None]:
            pairs = zip(values, fits, strict=True)
            return [*(value if held else None for value, held in pairs), *beyond]

        def at_best(name: str) -> Numbers:
            return shown(self.tiers[tier][name][np.arange(len(best)), best].tolist())

        return {
            "draft_length": shown(best.tolist()),
            "acceptance_length": shown(self.accepted[best].tolist()),
            "speedup": at_best("speedup"),
            "tpot_ms": at_best("tpot_ms"),
            "tokens_per_second_per_request": at_best("tokens_per_second_per_request"),
            "tokens_per_second_per_device": at_best("tokens_per_second_per_device"),
        }

    def curve(self, tier: Tier, place: int) -> DraftNumbers:
        """The numbers of one place by draft length; null where the draft does not fit."""
        fits = cast(list[bool], self.fits[place].tolist())
        numbers = self.tiers[tier].items()
        curve = {name: _where(fits, row[place].tolist()) for name, row in numbers}
        return cast(DraftNumbers, curve)

    def speedups(self, tier: Tier) -> list[Numbers]:
        """Speedups, [places][draft length]; null where the draft does not fit."""
        held, rows = self.fits.tolist(), self.tiers[tier]["speedup"].tolist()
        shown = [_where(fits, row) for fits, row in zip(held, rows, strict=True)]
        beyond: Numbers = [None] * len(self.accepted)
        return shown + [beyond] * (len(self.steps.places) - len(shown))


def _where(fits: list[bool], values: list[float]) -> Numbers:
    return [value if fit else None for fit, value in zip(fits, values, strict=True)]


def drafter_view(steps: PlainSteps, drafter: PricedDrafter) -> DrafterView:
    """Compute one drafter's numbers; their plain twin is `cost.speedup_curve`."""
    longest = drafter.longest
    survival = drafter.acceptance.survival(longest)
    accepted = 1 + np.concatenate(([0.0], np.cumsum(survival)))
    plain = {tier: seconds[:, :1] for tier, seconds in steps.seconds.items()}
    drafts = steps.grid.drafts(drafter.cost, longest, plain)
    tiers = {}
    for tier in TIERS:
        verify, draft = steps.seconds[tier][:, : longest + 1], drafts[tier]
        step = verify + draft
        per_request = accepted / step
        tiers[tier] = {
            "speedup": per_request * plain[tier],
            "step_ms": MS * step,
            "verify_ms": MS * verify,
            "draft_ms": MS * draft,
            "tpot_ms": MS * step / accepted,
            "tokens_per_second_per_request": per_request,
            "tokens_per_second_per_device": steps.per_device(per_request),
            "break_even_length": step / plain[tier],
        }
    return DrafterView(steps, accepted, _fits(steps.grid, drafter), tiers)


def _fits(grid: Grid, drafter: PricedDrafter) -> np.ndarray:
    """Return whether each draft fits [loads, draft length + 1]: it keeps a snapshot of recurrent
    states per row, beside the drafter's weights."""
    most = {
        context: [
            capacity(grid.deployment, Workload(1, rows, context), drafter.cost).max_batch
            for rows in range(2, drafter.longest + 2)
        ]
        for context in {load.context for load in grid.loads}
    }
    fits = np.ones((len(grid.loads), drafter.longest + 1), dtype=bool)
    for index, load in enumerate(grid.loads):
        fits[index, 1:] = load.batch <= np.array(most[load.context])
    return fits
