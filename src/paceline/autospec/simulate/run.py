"""Runs of the policy over simulated traffic, many at once, beside the control."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from paceline.autospec.drift.adwin import Adwin
from paceline.autospec.drift.case import DriftCase
from paceline.autospec.drift.cells import DAY, HOUR, HourCells
from paceline.autospec.drift.classify import classify
from paceline.autospec.drift.evidence import gather
from paceline.autospec.drift.ledger import Ledger, LedgerEntry, LedgerKind
from paceline.autospec.drift.periods import drift_periods
from paceline.autospec.drift.report import DriftDecision, DriftKind, DriftReport
from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.simulate.world import (
    COHORTS,
    MONDAY,
    SimulatedEvent,
    SimulationPlan,
    draw_traffic,
)
from paceline.autospec.sums import TR, TT, FloatArray, IntArray, T

BATCH = 32  # runs whose numbers are computed together
TRAINED_AFTER = 2  # days from a decision until the new drafter is live
GRAIN = 32


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What one run led to. Days count from the start.

    event       day of the event; None without one
    decisions   day and report of everything but steady days and waiting
    control     days on which ADWIN on the raw global stream fired, once for each alarm
    """

    seed: int
    event: float | None
    decisions: tuple[tuple[int, DriftReport], ...]
    control: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        decisions = [{"day": day, **report.as_json()} for day, report in self.decisions]
        return {**asdict(self), "decisions": decisions}

    @property
    def retrains(self) -> list[int]:
        """Days on which the policy decided to train."""
        return [d for d, report in self.decisions if report.decision is DriftDecision.RETRAIN]


@dataclass(slots=True)
class _State:
    """A run that is under way: what was done, and the findings of the day before."""

    seed: int
    event: int | None
    control: tuple[float, ...]
    ledger: Ledger = field(default_factory=Ledger)
    decisions: list[tuple[int, DriftReport]] = field(default_factory=list)
    yesterday: set[tuple[DriftKind, DriftDecision]] = field(default_factory=set)


def simulate(
    plan: SimulationPlan,
    policy: AutospecPolicy,
    seeds: Sequence[int],
    *,
    control: bool = True,
    processes: int | None = None,
) -> list[SimulatedRun]:
    """Run the policy over the traffic of each seed, on all cores."""
    batches = [seeds[start : start + BATCH] for start in range(0, len(seeds), BATCH)]
    workers = min(processes or os.cpu_count() or 1, len(batches))
    if workers <= 1:
        return [run for batch in batches for run in simulate_batch(plan, policy, batch, control)]
    with ProcessPoolExecutor(workers) as pool:
        size = len(batches)
        done = pool.map(simulate_batch, [plan] * size, [policy] * size, batches, [control] * size)
        return [run for batch in done for run in batch]


def simulate_batch(
    plan: SimulationPlan, policy: AutospecPolicy, seeds: Sequence[int], control: bool = True
) -> list[SimulatedRun]:
    """Run several seeds together; the cohorts of all runs are rows of the same arrays."""
    states, sums, factors = [], [], []
    for seed in seeds:
        traffic = draw_traffic(plan, seed)
        alarms = control_alarms(traffic.acceptance_lengths, traffic.hour) if control else ()
        states.append(_State(seed, traffic.at, alarms))
        sums.append(traffic.cells())
        factors.append(traffic.factor)
    usual, factor = np.concatenate(sums, 1), np.concatenate(factors)
    seen = np.zeros_like(usual)
    for day in range(1, plan.days + 1):
        hours = slice(24 * (day - 1), 24 * day)
        seen[:, :, hours] = _fallen(usual[:, :, hours], factor[:, hours])
        _decide(day, states, seen[:, :, : 24 * day], factor, plan, policy)
    return [
        SimulatedRun(
            state.seed,
            None if state.event is None else state.event / 24,
            tuple(state.decisions),
            state.control,
        )
        for state in states
    ]


def control_alarms(values: FloatArray, hour: IntArray) -> tuple[float, ...]:
    """Return the days on which ADWIN fires on a stream of requests' ALs, all cohorts together."""
    detector = Adwin(clock=GRAIN, grain=GRAIN, restart=True)
    whole = len(values) // GRAIN * GRAIN
    return tuple(float(hour[index]) / 24 for index in detector.update_many(values[:whole]))


def _fallen(sums: FloatArray, factor: FloatArray) -> FloatArray:
    """Return hourly sums with tokens multiplied by the factor of their hour."""
    fallen = sums.copy()
    fallen[T] *= factor
    fallen[TR] *= factor
    fallen[TT] *= factor**2
    return fallen


def _decide(
    day: int,
    states: Sequence[_State],
    seen: FloatArray,
    factor: FloatArray,
    plan: SimulationPlan,
    policy: AutospecPolicy,
) -> None:
    """Assess all runs at the end of a day, and do what was decided."""
    labels = [cohort.label for cohort in COHORTS]
    restores = plan.event == SimulatedEvent.DROP
    size, now = len(labels), MONDAY + 24 * day
    cells = HourCells(tuple(map(str, range(seen.shape[1]))), MONDAY, seen)
    begins = np.concatenate([state.ledger.begins(labels) for state in states])
    evidence = gather(cells, begins, now, policy.drift)
    periods = drift_periods(cells, now, policy.drift)
    for index, state in enumerate(states):
        rows = slice(index * size, (index + 1) * size)
        case = DriftCase(labels, evidence.take(rows), periods.take(rows), state.ledger, policy)
        reports = classify(case)
        for report in reports:
            if (report.kind, report.decision) not in state.yesterday:
                state.decisions.append((day, report))
            _act(state, report, now * HOUR)
        _settle(state, reports, now * HOUR)
        state.yesterday = {(report.kind, report.decision) for report in reports}
        _swap(state, now, factor[rows], labels, restores)


def _act(state: _State, report: DriftReport, now: float) -> None:
    """Write what was decided into the run's ledger."""
    cohorts = frozenset(report.cohorts)
    if report.decision is DriftDecision.RETRAIN:
        _append(state, LedgerEntry(LedgerKind.TRAINING, now, cohorts))
    elif report.kind is DriftKind.DEPLOYMENT and not any(map(state.ledger.open_finding, cohorts)):
        _append(state, LedgerEntry(LedgerKind.FINDING, report.start, cohorts))


def _settle(state: _State, reports: Sequence[DriftReport], now: float) -> None:
    """Close the open finding where acceptance is back."""
    if any(report.kind is DriftKind.DEPLOYMENT for report in reports):
        return
    entries = (
        replace(entry, end=now) if entry.kind is LedgerKind.FINDING and entry.end is None else entry
        for entry in state.ledger.entries
    )
    state.ledger = Ledger(tuple(entries))


def _swap(
    state: _State, now: int, factor: FloatArray, labels: Sequence[str], restores: bool
) -> None:
    """Make the drafters live whose training is over. Where it was the drafter's fault (`restores`),
    their cohorts' AL is the usual one again."""
    entries = []
    for entry in state.ledger.entries:
        is_training = entry.kind is LedgerKind.TRAINING and entry.end is None
        if is_training and now * HOUR - entry.time >= TRAINED_AFTER * DAY:
            rows = [row for row, label in enumerate(labels) if entry.concerns(label)]
            if state.event is not None and state.event < (entry.time / HOUR) - MONDAY and restores:
                factor[rows, now - MONDAY :] = 1.0
            entries.append(replace(entry, end=now * HOUR))
            entries.append(LedgerEntry(LedgerKind.SWAP, now * HOUR, entry.cohorts))
        else:
            entries.append(entry)
    state.ledger = Ledger(tuple(entries))


def _append(state: _State, entry: LedgerEntry) -> None:
    state.ledger = Ledger((*state.ledger.entries, entry))
