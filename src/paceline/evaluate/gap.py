"""The production gap: what a drafter loses when prompts are not like those that it was made from.

An application's held-out prompts come from where its training prompts came from. Foreign prompts
are the same task under the same system prompt and grammar, written by somebody else, as users are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from paceline.bench.report.words import number, plain

ON_TASK, FOREIGN, OUT_OF_DOMAIN = "on task", "foreign", "out of domain"  # roles of a set


class JudgedSet(Protocol):
    """A set at one temperature, as SetResult has it."""

    role: str
    temperature: float

    def al_of(self, drafter: str) -> float | None: ...


@dataclass(frozen=True, slots=True)
class ProductionGap:
    """The mean AL incl. bonus of the sets of each role, at one temperature; None: no such set."""

    drafter: str
    temperature: float
    in_domain: float | None
    foreign: float | None
    out_of_domain: float | None

    @property
    def gap(self) -> float | None:
        """AL in domain minus AL on foreign prompts."""
        if self.in_domain is None or self.foreign is None:
            return None
        return self.in_domain - self.foreign

    @property
    def text(self) -> str:
        """One line, as `fast, T = 0: AL in domain 4.20, foreign 3.98, …`."""
        al = [number(al) for al in (self.in_domain, self.foreign, self.out_of_domain)]
        return (
            f"{self.drafter}, T = {plain(self.temperature)}: AL in domain {al[0]}, foreign "
            f"{al[1]}, out of domain {al[2]}; production gap {number(self.gap)}"
        )


def production_gaps(
    results: Sequence[JudgedSet], names: dict[str, str], temperatures: Sequence[float]
) -> list[ProductionGap]:
    """Return the gap of each of the drafters `names` at each temperature, where foreign prompts
    were evaluated."""
    if not any(result.role == FOREIGN for result in results):
        return []
    return [
        ProductionGap(
            called,
            temperature,
            _mean(results, drafter, temperature, ON_TASK),
            _mean(results, drafter, temperature, FOREIGN),
            _mean(results, drafter, temperature, OUT_OF_DOMAIN),
        )
        for temperature in temperatures
        for drafter, called in names.items()
    ]


def _mean(
    results: Sequence[JudgedSet], drafter: str, temperature: float, role: str
) -> float | None:
    lengths = [
        al
        for result in results
        if (result.role, result.temperature) == (role, temperature)
        and (al := result.al_of(drafter)) is not None
    ]
    return fmean(lengths) if lengths else None
