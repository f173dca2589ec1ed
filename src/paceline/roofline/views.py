"""One drafter over a grid of batches or contexts: every number by draft length, and the optima."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.roofline.capacity import max_batch
from paceline.roofline.grid import Grid, Seconds
from paceline.roofline.scenario import Scenario
from paceline.roofline.stated import StatedDrafter

MS = 1e3
BY_DRAFT_LENGTH = ("speedup", "step_ms", "verify_ms", "draft_ms", "tpot_ms",
                   "tokens_per_second_per_request", "tokens_per_second_per_device",
                   "break_even_length")  # fmt: skip
AT_OPTIMUM = ("draft_length", "acceptance_length", "speedup", "tpot_ms",
              "tokens_per_second_per_request", "tokens_per_second_per_device")  # fmt: skip
Numbers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Target:
    """The target's forwards of 1 … n rows a request, [loads, rows], over the loads that fit."""

    scenario: Scenario
    grid: Grid
    seconds: Seconds


@dataclass(frozen=True)
class Drafted:
    """One drafter there. `tiers` has [loads, γ + 1] of each of BY_DRAFT_LENGTH; `fits` says which
    of them the memory holds (γ = 0 always: there is no drafter then)."""

    accepted: np.ndarray
    fits: np.ndarray
    tiers: Mapping[str, Numbers]

    def best(self, tier: str) -> np.ndarray:
        """The best draft length of each load; of equally good ones the shortest."""
        found: np.ndarray = np.argmax(np.where(self.fits, self.tiers[tier]["speedup"], 0.0), axis=1)
        return found

    def optima(self, tier: str, places: Sequence[int]) -> dict[str, list[Any]]:
        """AT_OPTIMUM by place; the last places are those that do not fit at all."""
        best = self.best(tier)
        numbers = self.tiers[tier]
        chosen = {name: each[np.arange(len(best)), best] for name, each in numbers.items()}
        chosen |= {"draft_length": best, "acceptance_length": self.accepted[best]}
        return {name: padded(chosen[name].tolist(), places) for name in AT_OPTIMUM}

    def longest(self, places: Sequence[int]) -> list[int | None]:
        """The longest draft that fits at each place; 0 where the memory holds AR alone."""
        return padded((self.fits.sum(axis=1) - 1).tolist(), places)

    def map(self, tier: str, places: Sequence[int]) -> list[list[float | None] | None]:
        """Speedups, [places][γ]."""
        rows = zip(self.tiers[tier]["speedup"].tolist(), self.fits.tolist(), strict=True)
        shown = [[v if fit else None for v, fit in zip(*row, strict=True)] for row in rows]
        return padded(shown, places)


def measure(target: Target, drafter: StatedDrafter) -> Drafted:
    """The plain twin of the numbers: `speedup.speedup_curve`."""
    scenario, grid = target.scenario, target.grid
    longest = drafter.longest(scenario.max_draft)
    survival = drafter.acceptance.survival(longest)
    accepted = 1 + np.concatenate(([0.0], np.cumsum(survival)))
    plain = {tier: each[:, :1] for tier, each in target.seconds.items()}
    drafts = grid.drafts(drafter.cost, scenario.architecture, longest, plain)
    batch = np.array([[load.batch] for load in grid.loads]).reshape(-1, 1)
    tiers = {}
    for tier, seconds in target.seconds.items():
        verify, draft = seconds[:, : longest + 1], drafts[tier]
        step = verify + draft
        per_request = accepted / step
        tiers[tier] = {
            "speedup": per_request * plain[tier],
            "step_ms": MS * step,
            "verify_ms": MS * verify,
            "draft_ms": MS * draft,
            "tpot_ms": MS * step / accepted,
            "tokens_per_second_per_request": per_request,
            "tokens_per_second_per_device": batch * per_request / scenario.options.devices,
            "break_even_length": step / plain[tier],
        }
    return Drafted(accepted, _fits(target, drafter, longest), tiers)


def _fits(target: Target, drafter: StatedDrafter, longest: int) -> np.ndarray:
    """Drafts keep a snapshot of recurrent states per row, and a drafter has weights of its own."""
    scenario, loads = target.scenario, target.grid.loads
    options = next(iter(target.grid.tiers.values()))
    most: dict[tuple[int, int], int] = {}
    found = np.ones((len(loads), longest + 1), dtype=bool)
    for index, load in enumerate(loads):
        for length in range(1, longest + 1):
            key = load.context, length
            if key not in most:
                verify = replace(load, rows_per_request=length + 1)
                most[key] = max_batch(
                    scenario.architecture, scenario.hardware, verify, options, drafter=drafter.cost
                )
            found[index, length] = load.batch <= most[key]
    return found


def padded(values: list[Any], places: Sequence[int]) -> list[Any]:
    return [*values, *[None] * (len(places) - len(values))]
