"""Find the unknowns of a calibration that measured points can tell, and their values.

Unknowns enter one by one, the most useful first, and only while they improve the prediction of
points that they were not fitted to; so a few points never buy more unknowns than they can tell
apart. With points enough, the search starts from the four that every engine has, and drops those
that turn out not to matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.roofline.architecture.work import Workload
from paceline.roofline.cost.deployment import Deployment, WorkTable
from paceline.roofline.device import Calibration
from paceline.roofline.fit.least_squares import Solution, derivatives, solve
from paceline.roofline.fit.points import MeasuredStep

ROW_TILES = (1, 2, 4, 8, 16, 32)
CORE = ("memory_efficiency", "compute_efficiency", "attention_memory_efficiency", "overlap")
ENOUGH = 2  # points per unknown to start from all of CORE
WORTH = 0.95  # an unknown stays when it lowers the left-out squared error below this share of it
ALIKE = 0.03  # residuals that move alike but for this share
OUTLIER = 0.2  # relative errors beyond it pull no stronger than in proportion


@dataclass(frozen=True)
class Case:
    """Measured steps of one deployment."""

    points: Sequence[MeasuredStep]
    deployment: Deployment


class StepTimes:
    """Predicted times of the points of several cases, for one calibration after another."""

    def __init__(self, cases: Sequence[Case]) -> None:
        pairs = [(case.deployment, point) for case in cases for point in case.points]
        forwards = [(deployment, Workload(p.batch, p.rows, p.context)) for deployment, p in pairs]
        single = [(deployment, replace(load, rows_per_request=1)) for deployment, load in forwards]
        self.drafted = np.array([float(point.draft_length) for _, point in pairs])
        self.table = WorkTable.of(forwards)
        self._plain = WorkTable.of(single) if self.drafted.any() else None

    def __call__(self, calibration: Calibration, draft_cost: float = 0.0) -> np.ndarray:
        """Seconds [points], case after case. Each drafted token takes `draft_cost` of a step of
        one row."""
        seconds = self.table.seconds(calibration)
        if self._plain is not None and draft_cost:
            seconds = seconds + draft_cost * self.drafted * self._plain.seconds(calibration)
        return seconds


@dataclass(frozen=True)
class Unknown:
    """Efficiencies are solved for in logarithms, the rest in multiples of a typical value. `tied`
    names the unknown whose value it takes while it is none itself."""

    name: str
    low: float = 0.0
    high: float = np.inf
    starts: tuple[float, ...] = (0.1,)
    logarithmic: bool = False
    tied: str | None = None

    def inward(self, value: float) -> float:
        """Convert a value into the units that are solved in."""
        return float(np.log(value)) if self.logarithmic else value


def _efficiency(name: str, tied: str | None = None) -> Unknown:
    return Unknown(name, 0.002, 50.0, (0.7, 0.3, 0.1), logarithmic=True, tied=tied)


UNKNOWNS = {
    unknown.name: unknown
    for unknown in (
        _efficiency("memory_efficiency"),
        Unknown("draft_cost", high=10.0),
        _efficiency("compute_efficiency"),
        _efficiency("attention_memory_efficiency", tied="memory_efficiency"),
        _efficiency("attention_compute_efficiency", tied="compute_efficiency"),
        Unknown("overlap", high=1.0, starts=(0.7,)),
        Unknown("half_rows", high=512.0, starts=(4.0,)),
        Unknown("step_overhead"),
        Unknown("layer_overhead"),
        Unknown("request_overhead"),
        Unknown("row_overhead"),
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
        columns = (table.tokens, table.depth, table.batch)
        rows, layers, batch = (float(np.median(column)) for column in columns)
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
        plain, tile = self._explain(1), self._likely_tile()
        return plain if tile == 1 else min(plain, self._explain(tile), key=_left_out)

    def _likely_tile(self) -> int:
        """The row tile that explains the points best, with the unknowns that it stands among."""
        core = CORE[: len(self.measured) - 1]
        return min(ROW_TILES, key=lambda tile: self.best(core, tile).solution.squares)

    def _explain(self, tile: int) -> Candidate:
        enough = len(self.measured) >= ENOUGH * len(CORE)
        return self._prune(self._grow(self.best(CORE if enough else (), tile)))

    def _grow(self, current: Candidate) -> Candidate:
        """Add the unknown that helps most, while one helps."""
        while len(current.names) + 1 < len(self.measured):
            others = [name for name in self.names if name not in current.names]
            if not others:
                break
            options = [self._from(current, (*current.names, name)) for name in others]
            # of those that help about as much, the first of UNKNOWNS
            least = min(map(_left_out, options))
            better = next(option for option in options if _left_out(option) <= least / WORTH)
            if not _left_out(better) < WORTH * _left_out(current):
                break
            current = better
        return current

    def _prune(self, current: Candidate) -> Candidate:
        """Drop the unknown that is missed least, while one is not missed."""
        while len(current.names) > 1:
            fewer = [
                self._from(current, tuple(name for name in current.names if name != dropped))
                for dropped in reversed(current.names)
            ]
            least = min(fewer, key=_left_out)
            if _left_out(least) * WORTH > _left_out(current):
                break
            current = least
        return current

    def _from(self, current: Candidate, names: tuple[str, ...]) -> Candidate:
        return self.best(names, current.tile, current.solved)

    def best(
        self, names: tuple[str, ...], tile: int, start: Mapping[str, float] | None = None
    ) -> Candidate:
        """Solve for these unknowns, from `start` and from the starts of the last of them."""
        start = start or {}
        unknowns = [UNKNOWNS[name] for name in names]
        low = np.array([unknown.inward(unknown.low) for unknown in unknowns])
        high = np.array([unknown.inward(unknown.high) for unknown in unknowns])
        first = [start.get(u.name, u.inward(u.starts[0])) for u in unknowns]
        starts = [np.array(first)]
        if unknowns and names[-1] not in start:
            last = unknowns[-1]
            starts += [np.array([*first[:-1], last.inward(other)]) for other in last.starts[1:]]
        residuals = self._residuals(names, tile)
        solutions = [solve(residuals, values, low, high) for values in starts]
        return Candidate(names, tile, min(solutions, key=lambda solution: solution.squares))

    def _residuals(self, names: tuple[str, ...], tile: int) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function from solved values [k] to relative errors [points], under Huber's
        loss: squares up to OUTLIER, straight beyond it."""

        def residuals(solved: np.ndarray) -> np.ndarray:
            values = self.values(names, solved)
            draft_cost = values.pop("draft_cost", 0.0)
            predicted = self.times(Calibration(row_tile=tile, **values), draft_cost)
            errors = predicted / self.measured - 1.0
            size = np.abs(errors)
            beyond = np.sqrt(np.maximum(2 * OUTLIER * size - OUTLIER**2, 0.0))
            tamed: np.ndarray = np.where(size <= OUTLIER, errors, np.sign(errors) * beyond)
            return tamed

        return residuals

    def values(self, names: tuple[str, ...], solved: np.ndarray) -> dict[str, float]:
        """Values by name in the calibration's units; tied unknowns included."""
        values = {}
        for name, value in zip(names, solved.tolist(), strict=True):
            scaled = value * self.scale.get(name, 1.0)
            values[name] = float(np.exp(value)) if UNKNOWNS[name].logarithmic else scaled
        for unknown in UNKNOWNS.values():
            if unknown.tied in values:
                values.setdefault(unknown.name, values[unknown.tied])
        return values

    def why_not(self, name: str, chosen: Candidate, here: float) -> str:
        """Say what keeps this unknown out, from how the residuals move with it around `here`."""
        names = (*chosen.names, name)
        values = np.append(chosen.solution.values, UNKNOWNS[name].inward(here))
        high = np.array([UNKNOWNS[other].inward(UNKNOWNS[other].high) for other in names])
        residuals = self._residuals(names, chosen.tile)
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


def _left_out(candidate: Candidate) -> float:
    return candidate.solution.left_out
