"""Acceptance by position in the answer and by length of the context: where does a fall begin?

A drafter that learnt short answers, or whose window is too small, loses late tokens and long
contexts only. More training on the same texts does not help there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from paceline.autospec.drift.case import DriftCase
from paceline.autospec.drift.cells import DAY, HOUR
from paceline.autospec.drift.report import DriftDecision, DriftKind, DriftReport
from paceline.autospec.sums import (
    MOMENTS,
    FloatArray,
    IntArray,
    N,
    R,
    divide,
    moments,
    ratio_of,
    residuals,
    squares,
)

BINS = 12  # 0–127, 128–255, 256–511, … tokens
AXES = ("answer", "context")
IN_WORDS = {"answer": "of the answer", "context": "of context"}
LEAST_REQUESTS = 30  # of a bin, before and now


@dataclass(frozen=True, slots=True)
class RoundColumns:
    """Drafted rounds as columns of equal length.

    cohorts   labels; `cohort` holds indices into them
    request   a number that tells requests apart, from 0
    time      seconds since the epoch
    position  of the round's first token in the answer; `context` is all tokens before it
    accepted  draft tokens that stand
    """

    cohorts: tuple[str, ...]
    cohort: IntArray
    request: IntArray
    time: FloatArray
    position: IntArray
    context: IntArray
    accepted: FloatArray


@dataclass(frozen=True, slots=True)
class PositionCells:
    """Sums [6, cohorts, days, axes, BINS] from the day `start` (days since the epoch) on. The unit
    is a request within a bin."""

    cohorts: tuple[str, ...] = ()
    start: int = 0
    sums: FloatArray = field(default_factory=lambda: np.zeros((MOMENTS, 0, 0, len(AXES), BINS)))

    @classmethod
    def of(cls, rounds: RoundColumns) -> PositionCells:
        """Sum rounds."""
        if not len(rounds.cohort):
            return cls()
        day = (rounds.time // DAY).astype(np.int64)
        start, days = int(day.min()), int(day.max() - day.min()) + 1
        shape = (len(rounds.cohorts), days, BINS)
        place = (rounds.cohort * days + day - start) * BINS
        parts = [
            _summed(place + doubling_bin(values), rounds.request, rounds.accepted, shape)
            for values in (rounds.position, rounds.context)
        ]
        return cls(tuple(rounds.cohorts), start, np.stack(parts, 3))

    def __add__(self, other: PositionCells) -> PositionCells:
        """Return the sums of both; cohorts are matched by their labels."""
        if not self.sums.size or not other.sums.size:
            return self if self.sums.size else other
        cohorts = tuple(dict.fromkeys((*self.cohorts, *other.cohorts)))
        start = min(self.start, other.start)
        end = max(cells.start + cells.sums.shape[2] for cells in (self, other))
        sums = np.zeros((MOMENTS, len(cohorts), end - start, len(AXES), BINS))
        for cells in (self, other):
            rows = [cohorts.index(label) for label in cells.cohorts]
            first = cells.start - start
            sums[:, rows, first : first + cells.sums.shape[2]] += cells.sums
        return PositionCells(cohorts, start, sums)

    def days(self, cohort: str, first: int, end: int) -> FloatArray:
        """Return the sums of a cohort's days [first, end), [6, days, axes, BINS]."""
        if cohort not in self.cohorts:
            return np.zeros((MOMENTS, 0, len(AXES), BINS))
        low, high = max(first - self.start, 0), max(end - self.start, 0)
        return self.sums[:, self.cohorts.index(cohort), low:high]


def doubling_bin(values: IntArray) -> IntArray:
    """Return the bin of each number of tokens: 0 below 128, and one more with each doubling."""
    scaled = np.maximum(np.asarray(values), 1) / 128
    bins: IntArray = np.clip(np.floor(np.log2(scaled)) + 1, 0, BINS - 1).astype(np.int64)
    return bins


def bin_start(index: int) -> int:
    """Return the first number of tokens of a bin."""
    return 0 if index == 0 else 128 << (index - 1)


def decays(case: DriftCase, cells: PositionCells) -> Iterator[DriftReport]:
    """Yield the cohorts whose AL fell late in answers or in long contexts only.

    A bin and all behind it fell, by the policy's measures, and those before it did not.
    """
    policy, today = case.policy.drift, case.periods.now // 24
    for row, label in enumerate(case.cohorts):
        begin = int(case.evidence.begin[row]) // 24
        first = today - policy.days
        before = cells.days(label, begin, min(begin + policy.reference_days, first))
        recent = cells.days(label, first, today)
        if before.shape[1] < policy.least_reference_days or recent.shape[1] < policy.days:
            continue
        found = [
            _decay(case, row, name, before[:, :, axis].sum(1), recent[:, :, axis])
            for axis, name in enumerate(AXES)
        ]
        falls = [report for report in found if report is not None]
        if falls:  # after short prompts both show one fall: it is told once, where it is clearest
            yield min(falls, key=lambda report: report.change)


def _decay(
    case: DriftCase, row: int, axis: str, before: FloatArray, recent: FloatArray
) -> DriftReport | None:
    """`before` are sums [6, BINS], `recent` those of days, [6, days, BINS]."""
    policy = case.policy.drift
    now = recent.sum(1)
    enough = np.flatnonzero((before[N] >= LEAST_REQUESTS) & (now[N] >= LEAST_REQUESTS)).tolist()
    if len(enough) < 2:
        return None
    norm = ratio_of(before)
    change, error = _change(now, norm, before)
    fallen = change <= -np.maximum(policy.drop, policy.sigmas * error)
    late = [index for index in enough if fallen[[i for i in enough if i >= index]].all()]
    if not late or late[0] == enough[0]:
        return None
    early = [index for index in enough if index < late[0]]
    daily = divide(residuals(recent, norm)[:, late].sum(1), (norm * recent[R])[:, late].sum(1))
    kept = divide(residuals(now, norm)[early].sum(), (norm * now[R])[early].sum())
    if kept <= -policy.drop / 2 or not (daily <= -policy.drop / 2).all():
        return None
    lost = divide(residuals(now, norm)[late].sum(), (norm * now[R])[late].sum())
    place = f"token {bin_start(late[0])} {IN_WORDS[axis]}"
    label = case.cohorts[row]
    return DriftReport(
        kind=DriftKind.DECAY,
        decision=DriftDecision.ALERT,
        cohorts=(label,),
        start=case.now - policy.days * 24 * HOUR,
        end=case.now,
        change=float(lost),
        error=float(error[late].max()),
        before=float(divide((norm * now[R])[late].sum(), now[R][late].sum())),
        now=float(ratio_of(now[:, late].sum(1))),
        requests=int(now[N][late].sum()),
        rounds=int(now[R][late].sum()),
        why=(f"From {place} on, AL of {label} fell by {-lost:.1%}; before that, by {-kept:.1%}.",),
        why_not=(
            "No retrain on the same texts: train on longer ones, or draft within a window "
            f"(--draft-window) of less than {bin_start(late[0])} tokens.",
        ),
    )


def _change(now: FloatArray, norm: FloatArray, before: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the relative change of each bin, and its standard error."""
    change = divide(residuals(now, norm), norm * now[R])
    noise = divide(squares(now, norm), now[R] ** 2) + divide(squares(before, norm), before[R] ** 2)
    return change, divide(np.sqrt(noise), norm)


def _summed(
    place: IntArray, request: IntArray, accepted: FloatArray, shape: tuple[int, int, int]
) -> FloatArray:
    """Return sums [6, cohorts, days, BINS] of rounds whose bins are `place`."""
    requests = int(request.max()) + 1
    pairs, index = np.unique(place * requests + request, return_inverse=True)
    rounds = np.bincount(index).astype(float)
    values = moments(rounds + np.bincount(index, accepted), rounds)
    size, cells = shape[0] * shape[1] * shape[2], pairs // requests
    return np.stack([np.bincount(cells, column, size).reshape(shape) for column in values])
