"""Find the unknowns of a calibration that measured points can tell, and their values.

Unknowns enter one by one, the most useful first, and only while they improve the prediction of
points that they were not fitted to; so a few points never buy more unknowns than they can tell
apart. With points enough, the search starts from the four that every engine has, and drops those
that turn out not to matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from paceline.roofline.device import Calibration
from paceline.roofline.fit.least_squares import Solution, derivatives, solve
from paceline.roofline.fit.step_times import StepTimes

ROW_TILES = (1, 2, 4, 8, 16, 32)
CORE = ("memory_efficiency", "compute_efficiency", "attention_memory_efficiency", "overlap")
ENOUGH = 2  # points per unknown to start from all of CORE
WORTH = 0.95  # an unknown stays when it lowers the left-out squared error below this share of it
ALIKE = 0.03  # residuals that move alike but for this share
OUTLIER = 0.2  # relative errors beyond it pull no stronger than in proportion


@dataclass(frozen=True)
class Unknown:
    """Efficiencies are solved for in logarithms, the rest in multiples of a typical value. `tied`
    names the unknown whose value it takes while it is none itself."""

    name: str
    low: float
    high: float
    starts: tuple[float, ...]
    logarithmic: bool = False
    tied: str | None = None


def _efficiency(name: str, tied: str | None = None) -> Unknown:
    return Unknown(name, 0.002, 50.0, (0.7, 0.3, 0.1), logarithmic=True, tied=tied)


UNKNOWNS = {
    unknown.name: unknown
    for unknown in (
        _efficiency("memory_efficiency"),
        Unknown("draft_cost", 0.0, 10.0, (0.1,)),
        _efficiency("compute_efficiency"),
        _efficiency("attention_memory_efficiency", tied="memory_efficiency"),
        _efficiency("attention_compute_efficiency", tied="compute_efficiency"),
        Unknown("overlap", 0.0, 1.0, (0.7,)),
        Unknown("half_rows", 0.0, 512.0, (4.0,)),
        Unknown("step_overhead", 0.0, np.inf, (0.1,)),
        Unknown("layer_overhead", 0.0, np.inf, (0.1,)),
        Unknown("request_overhead", 0.0, np.inf, (0.1,)),
        Unknown("row_overhead", 0.0, np.inf, (0.1,)),
        _efficiency("sampling_efficiency", tied="memory_efficiency"),
    )
}


@dataclass(frozen=True)
class Candidate:
    """Unknowns, the row tile beside them, and the solution in the units that are solved in."""

    names: tuple[str, ...]
    tile: int
    solution: Solution

    @property
    def solved(self) -> dict[str, float]:
        """The values by name."""
        return dict(zip(self.names, self.solution.values.tolist(), strict=True))


class Search:
    """The search over `measured` [points] seconds, with `times` that predict them."""

    def __init__(self, measured: np.ndarray, times: StepTimes) -> None:
        self.times, self.measured = times, measured
        typical, table = float(np.median(measured)), times.table
        rows, layers, batch = (
            float(np.median(column)) for column in (table.tokens, table.depth, table.batch)
        )
        self.scale = {
            "step_overhead": typical,
            "layer_overhead": typical / layers,
            "request_overhead": typical / layers / batch,
            "row_overhead": typical / layers / rows,
        }
        drafted = bool(times.drafted.any())
        self.names = [name for name in UNKNOWNS if name != "draft_cost" or drafted]

    def run(self) -> Candidate:
        """The best unknowns, without a row tile and with the likeliest one."""
        plain, tile = self.explain(1), self.likely_tile()
        if tile == 1:
            return plain
        tiled = self.explain(tile)
        return tiled if tiled.solution.left_out < plain.solution.left_out else plain

    def likely_tile(self) -> int:
        """The row tile that explains the points best, with the unknowns that it stands among."""
        core = CORE[: len(self.measured) - 1]
        squares = {tile: self.best(core, tile).solution.squares for tile in ROW_TILES}
        return min(squares, key=lambda tile: squares[tile])

    def explain(self, tile: int) -> Candidate:
        enough = len(self.measured) >= ENOUGH * len(CORE)
        return self.prune(self.grow(self.best(CORE if enough else (), tile)))

    def grow(self, current: Candidate) -> Candidate:
        """Add the unknown that helps most, while one helps."""
        while len(current.names) + 1 < len(self.measured):
            options = [
                self.best((*current.names, name), current.tile, current.solved)
                for name in self.names
                if name not in current.names
            ]
            if not options:
                break
            # of those that help about as much, the first of UNKNOWNS
            least = min(option.solution.left_out for option in options)
            better = next(o for o in options if o.solution.left_out <= least / WORTH)
            if not better.solution.left_out < WORTH * current.solution.left_out:
                break
            current = better
        return current

    def prune(self, current: Candidate) -> Candidate:
        """Drop the unknown that is missed least, while one is not missed."""
        while len(current.names) > 1:
            fewer = [
                self.best(
                    tuple(other for other in current.names if other != name),
                    current.tile,
                    current.solved,
                )
                for name in reversed(current.names)
            ]
            least = min(fewer, key=lambda option: option.solution.left_out)
            if least.solution.left_out * WORTH > current.solution.left_out:
                break
            current = least
        return current

    def best(
        self, names: tuple[str, ...], tile: int, start: Mapping[str, float] | None = None
    ) -> Candidate:
        """Solve for these unknowns, from `start` and from the starts of the last of them."""
        start = start or {}
        unknowns = [UNKNOWNS[name] for name in names]
        low = np.array([inward(unknown, unknown.low) for unknown in unknowns])
        high = np.array([inward(unknown, unknown.high) for unknown in unknowns])
        first = [start.get(u.name, inward(u, u.starts[0])) for u in unknowns]
        starts = [np.array(first)]
        if unknowns and names[-1] not in start:
            starts += [
                np.array([*first[:-1], inward(unknowns[-1], other)])
                for other in unknowns[-1].starts[1:]
            ]
        residuals = self.residuals(names, tile)
        solutions = [solve(residuals, values, low, high) for values in starts]
        return Candidate(names, tile, min(solutions, key=lambda solution: solution.squares))

    def residuals(self, names: tuple[str, ...], tile: int) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function from solved values [k] to tamed relative errors [points]."""

        def errors(solved: np.ndarray) -> np.ndarray:
            values = self.values(names, solved)
            draft_cost = values.pop("draft_cost", 0.0)
            predicted = self.times(Calibration(row_tile=tile, **values), draft_cost)
            return _tamed(predicted / self.measured - 1.0)

        return errors

    def values(self, names: tuple[str, ...], solved: np.ndarray) -> dict[str, float]:
        """Values by name in the calibration's units; tied unknowns included."""
        values = {}
        for name, value in zip(names, solved.tolist(), strict=True):
            logarithmic = UNKNOWNS[name].logarithmic
            values[name] = (
                float(np.exp(value)) if logarithmic else value * self.scale.get(name, 1.0)
            )
        for unknown in UNKNOWNS.values():
            if unknown.tied in values and unknown.name not in values:
                values[unknown.name] = values[unknown.tied]
        return values

    def why_not(self, name: str, chosen: Candidate, here: float) -> str:
        """Say what keeps this unknown out, from how the residuals move with it around `here`."""
        unknown, names = UNKNOWNS[name], (*chosen.names, name)
        values = np.append(chosen.solution.values, inward(unknown, here))
        high = np.array([inward(UNKNOWNS[other], UNKNOWNS[other].high) for other in names])
        residuals = self.residuals(names, chosen.tile)
        moved = derivatives(residuals, values, residuals(values), high)
        others, last = moved[:, :-1], moved[:, -1]
        if not np.abs(last).max() > 1e-4:
            return "no point depends on it"
        if others.shape[1]:
            like = np.linalg.lstsq(others, last, rcond=None)[0]
            if np.linalg.norm(last - others @ like) < ALIKE * np.linalg.norm(last):
                shares = np.abs(like) * np.linalg.norm(others, axis=0)
                return f"the points cannot tell it from {chosen.names[int(shares.argmax())]}"
        return "the points are explained as well without it"


def inward(unknown: Unknown, value: float) -> float:
    """Convert a value into the units that are solved in."""
    return float(np.log(value)) if unknown.logarithmic else value


def _tamed(errors: np.ndarray) -> np.ndarray:
    """Huber's loss as residuals: squares up to OUTLIER, straight beyond it."""
    size = np.abs(errors)
    beyond = np.sqrt(np.maximum(2 * OUTLIER * size - OUTLIER**2, 0.0))
    return np.where(size <= OUTLIER, errors, np.sign(errors) * beyond)
