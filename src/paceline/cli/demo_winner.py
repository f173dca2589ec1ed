"""The contest at the end of the training demo: look-ups, the trained drafter, and both together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from rich.table import Table

from paceline.bench.report import tables
from paceline.bench.report.words import number
from paceline.evaluate.result import DRAFTER, Evaluation

SUFFIX = "suffix"


@dataclass(frozen=True, slots=True)
class Contender:
    """A drafter with what `paceline serve --drafter` takes for it, and its AL incl. bonus and its
    speedup over AR on each of the sets; None where nothing was measured."""

    name: str
    spec: str
    numbers: tuple[tuple[float | None, float | None], ...]

    @property
    def speed(self) -> float:
        """The geometric mean of its speedups; 0 where one was not measured."""
        speeds = [speed or 0.0 for _, speed in self.numbers]
        return float(prod(speeds) ** (1 / len(speeds)))


def contender(
    name: str, spec: str, evaluation: Evaluation, sets: Sequence[str], drafter: str = DRAFTER
) -> Contender:
    """Return a drafter with its numbers out of an evaluation. Raises KeyError for a set that it
    does not have."""
    results = {result.set: result for result in evaluation.results}
    numbers = []
    for chosen in sets:
        speed = evaluation.speed_of(results[chosen], drafter)
        numbers.append((results[chosen].al_of(drafter), None if speed is None else speed.speedup))
    return Contender(name, spec, tuple(numbers))


def winner(contenders: Sequence[Contender]) -> Contender:
    """Return the fastest in the geometric mean over the sets; the first of equals."""
    return max(contenders, key=lambda contender: contender.speed)


def contest_table(contenders: Sequence[Contender], sets: Sequence[str]) -> Table:
    """Return AL and speedup of every drafter on every set, the fastest in bold."""
    table = tables.base_table("which drafter to serve")
    table.add_column("drafter")
    for chosen in sets:
        table.add_column(f"{chosen}\nAL", justify="right")
        table.add_column("\nspeedup", justify="right")
    best = winner(contenders)
    for contender in contenders:
        cells = [
            text for al, speed in contender.numbers for text in (number(al), number(speed, "×"))
        ]
        style = "bold" if contender is best else None
        table.add_row(contender.name, *cells, style=style)
    return table
