"""Keeps what a turn of the loop saw of each cohort, for people to read, and with `al` for the turn
itself, which decides about weights by it."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np

from paceline.autospec.drift import DriftCase
from paceline.autospec.sums import N


@dataclass(frozen=True, slots=True)
class SeenCohort:
    """A cohort at a turn. ALs include the bonus token, and are None where nothing is known.

    al        of the last day
    judged    of the last `days`, which drift judges, and `requests` in them
    usual     what these days usually have, by `reference_days` of this drafter; None where those
              are too few
    change    judged ÷ usual − 1
    time      when the turn was, seconds since the epoch
    """

    cohort: str
    al: float | None
    judged: float | None
    usual: float | None
    change: float | None
    requests: int
    days: float
    reference_days: int
    time: float

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Return the cohort of a row of the store."""
        return cls(*(row[field.name] for field in fields(cls)))

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def seen_cohorts(case: DriftCase, now: float) -> list[SeenCohort]:
    """Return what is seen of each cohort that had a request in the days that are judged."""
    evidence, seen = case.evidence, []
    requests = np.maximum(evidence.requests, case.periods.current[N])
    for row, label in enumerate(case.cohorts):
        if not requests[row]:
            continue
        ready = bool(evidence.ready[row])
        seen.append(
            SeenCohort(
                cohort=label,
                al=_known(evidence.last_day[row]),
                judged=_known(evidence.seen[row]),
                usual=_known(evidence.expected[row]) if ready else None,
                change=_known(evidence.change[row]) if ready else None,
                requests=int(evidence.requests[row]),
                days=float(evidence.needed[row]),
                reference_days=int(evidence.reference_days[row]),
                time=now,
            )
        )
    return seen


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
