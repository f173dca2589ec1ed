"""Simulated traffic: two hemispheres with their own days and weeks, and one thing that happens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import numpy as np

from paceline.autospec.drift.cells import summands
from paceline.autospec.sums import BoolArray, FloatArray, IntArray
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between, OneOf

MONDAY = 20_458 * 24  # hour since the epoch in which simulations begin: Monday 2026-01-05, 0 h UTC
LONGEST = 7  # draft tokens
MEAN_ROUNDS = 26.0
SPREAD = 0.18  # of requests' AL around the cohort's, relative
ROUND_SHAPE = 6.0  # of the gamma distribution of a round's tokens
DAY_SPREAD = 0.01  # of a day's AL, relative
WEEKEND = 0.97  # a weekend's AL, relative
QUIET_WEEKEND = 0.7  # a weekend's requests, relative


class SimulatedEvent(StrEnum):
    """What happens, beside the season, which is always there."""

    SEASON = "season"
    MIX = "mix"  # one hemisphere's customers leave: its requests fall to a third
    DROP = "drop"  # one cohort's AL falls
    DEPLOYMENT = "deployment"  # all cohorts' AL falls within an hour
    REPETITION = "repetition"  # some answers of a cohort loop


@checked
class SimulationPlan:
    """The traffic of a simulation."""

    event: Annotated[str, OneOf(tuple(SimulatedEvent))] = about(
        "what happens beside the season: nothing (season); one hemisphere's customers leave (mix); "
        "one cohort's AL falls (drop); that of all cohorts falls in the same hour (deployment); "
        "some answers of a cohort loop (repetition)",
        str(SimulatedEvent.DROP),
    )
    days: Annotated[int, Between(21, 730)] = about("days that are simulated", 70)
    at: Annotated[float, Between(0, 730)] | None = about(
        "day on which it happens", None, "drawn for each run"
    )
    size: Annotated[float, Between(0, 0.9)] = about(
        "how much AL falls, as a share; for repetition, the share of answers that loop", 0.08
    )
    requests: Annotated[float, Between(1, 10_000)] = about(
        "requests an hour, of both hemispheres together", 30.0
    )
    swing: Annotated[float, Between(0, 0.5)] = about(
        "how much a hemisphere's AL rises and falls with the hour, as a share", 0.04
    )

    def __post_init__(self) -> None:
        if self.at is not None and self.at >= self.days:
            raise InvalidRequest("at", self.at, f"a day before the end ({self.days})")


@dataclass(frozen=True, slots=True)
class SimulatedCohort:
    """A cohort: its AL, and the hour UTC in which it is busiest."""

    label: str
    al: float
    busiest: int


COHORTS = (
    SimulatedCohort("target|chat|en|north", 5.2, 14),
    SimulatedCohort("target|chat|en|south", 3.4, 2),
)


@dataclass(frozen=True, slots=True)
class SimulatedTraffic:
    """The requests of one run in the order of time, as they would be without the event's fall.

    hour, cohort, tokens, rounds   of each request; hours from the start
    factor      [cohorts, hours], what the event multiplies tokens with
    at          hour of the event; None where there is none
    concerned   cohorts whose acceptance it changes
    """

    hour: IntArray
    cohort: IntArray
    tokens: FloatArray
    rounds: FloatArray
    factor: FloatArray
    at: int | None
    concerned: tuple[int, ...]

    @property
    def acceptance_lengths(self) -> FloatArray:
        """AL of each request, with the event's fall."""
        fallen = self.tokens * self.factor[self.cohort, self.hour] / self.rounds
        return np.maximum(fallen, 1.0)

    def cells(self) -> FloatArray:
        """Return hourly sums [COLUMNS, cohorts, hours] without the event's fall."""
        cohorts, hours = self.factor.shape
        values = summands(
            self.tokens - self.rounds, self.rounds, np.full(len(self.hour), float(LONGEST))
        )
        place = self.cohort * hours + self.hour
        columns = [np.bincount(place, column, cohorts * hours).astype(float) for column in values]
        sums: FloatArray = np.stack(columns).reshape(-1, cohorts, hours)
        return sums


def draw_traffic(plan: SimulationPlan, seed: int) -> SimulatedTraffic:
    """Draw the requests of one run."""
    rng = np.random.default_rng(seed)
    hours = np.arange(24 * plan.days)
    at = _hour_of_event(plan, rng)
    rates = np.stack([_rates(cohort, hours) for cohort in COHORTS])
    rates *= plan.requests / rates.sum(0).mean()
    if plan.event == SimulatedEvent.MIX and at is not None:
        rates[0, at:] *= 0.35
    counts = rng.poisson(rates)
    cohort = np.repeat(np.repeat(np.arange(len(COHORTS)), hours.size), counts.ravel())
    hour = np.repeat(np.tile(hours, len(COHORTS)), counts.ravel())
    order = np.argsort(hour + rng.random(hour.size))
    cohort, hour = cohort[order], hour[order]
    norms = np.stack([_acceptance(cohort, hours, plan.swing, rng) for cohort in COHORTS])
    tokens, rounds = _answers(norms[cohort, hour], rng)
    concerned = _concerned(plan, rng)
    factor = np.ones(rates.shape)
    if at is not None and plan.event in (SimulatedEvent.DROP, SimulatedEvent.DEPLOYMENT):
        factor[list(concerned), at:] = 1 - plan.size
    if at is not None and plan.event == SimulatedEvent.REPETITION:
        loops = (hour >= at) & np.isin(cohort, concerned) & (rng.random(hour.size) < plan.size)
        rounds = np.where(loops, 3 * MEAN_ROUNDS, rounds)
        tokens = np.where(loops, 0.98 * (LONGEST + 1) * rounds, tokens)
    return SimulatedTraffic(hour, cohort, tokens, rounds, factor, at, concerned)


def _hour_of_event(plan: SimulationPlan, rng: np.random.Generator) -> int | None:
    if plan.event == SimulatedEvent.SEASON:
        return None
    if plan.at is not None:
        return int(24 * plan.at)
    return int(rng.integers(24 * plan.days * 3 // 10, 24 * plan.days * 8 // 10))


def _concerned(plan: SimulationPlan, rng: np.random.Generator) -> tuple[int, ...]:
    one = (int(rng.integers(len(COHORTS))),)
    if plan.event in (SimulatedEvent.SEASON, SimulatedEvent.MIX):
        return ()
    return tuple(range(len(COHORTS))) if plan.event == SimulatedEvent.DEPLOYMENT else one


def _is_weekend(hours: IntArray) -> BoolArray:
    is_weekend: BoolArray = (hours // 24) % 7 >= 5
    return is_weekend


def _rates(cohort: SimulatedCohort, hours: IntArray) -> FloatArray:
    daily = 1 + 0.95 * np.cos(2 * np.pi * (hours - cohort.busiest) / 24)
    return daily * np.where(_is_weekend(hours), QUIET_WEEKEND, 1.0)


def _acceptance(
    cohort: SimulatedCohort, hours: IntArray, swing: float, rng: np.random.Generator
) -> FloatArray:
    daily = 1 + swing * np.cos(2 * np.pi * (hours - cohort.busiest - 3) / 24)
    days = np.exp(rng.normal(0, DAY_SPREAD, hours.size // 24 + 1))[hours // 24]
    return cohort.al * daily * days * np.where(_is_weekend(hours), WEEKEND, 1.0)


def _answers(norms: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Return tokens and rounds of requests with these expected ALs."""
    rounds = 1.0 + rng.geometric(1 / (MEAN_ROUNDS - 1), norms.size)
    al = np.clip(norms * (1 + SPREAD * rng.standard_normal(norms.size)), 1.05, LONGEST + 0.5)
    tokens = rng.standard_gamma(ROUND_SHAPE * rounds) * al / ROUND_SHAPE
    return np.clip(tokens, rounds, (LONGEST + 1) * rounds).astype(float), rounds.astype(float)
