"""The total AL's change, divided into mix, season and what happens within cohorts. Parts sum up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from paceline.autospec.sums import FloatArray, divide


@dataclass(frozen=True, slots=True)
class AcceptanceParts:
    """What changed the total AL, in tokens per round, by cohort.

    ΔAL = Σ (s − s⁰)·AL⁰  [mix]  +  Σ s·(AL − AL⁰)  [within], s being shares of the rounds.
    """

    before: float
    now: float
    mix: FloatArray
    within: FloatArray

    @property
    def change(self) -> float:
        return self.now - self.before


def decompose(
    rounds_before: ArrayLike, al_before: ArrayLike, rounds: ArrayLike, al: ArrayLike
) -> AcceptanceParts:
    """Divide the change of the total AL between two periods.

    All values are by cohort. A cohort that had no rounds before is all mix; one that has none now
    as well. Shares are of the rounds of each period.
    """
    was, is_now = np.asarray(rounds_before, float), np.asarray(rounds, float)
    old = np.where(was > 0, np.asarray(al_before, float), np.asarray(al, float))
    new = np.where(is_now > 0, np.asarray(al, float), old)
    share_before, share = _shares(was), _shares(is_now)
    old, new = np.nan_to_num(old), np.nan_to_num(new)
    mix, within = (share - share_before) * old, share * (new - old)
    return AcceptanceParts(float(share_before @ old), float(share @ new), mix, within)


@dataclass(frozen=True, slots=True)
class RecentParts:
    """What sets the AL of the last hours apart from the mean of the last weeks.

    season  the usual shares and AL of these hours; `mix` unusual shares; `within` unusual AL
    """

    mean: float
    now: float
    season: float
    mix: float
    within: float


def explain_recent(
    mean: float, usual_rounds: FloatArray, expected: FloatArray, rounds: FloatArray, al: FloatArray
) -> RecentParts:
    """Divide now − mean. By cohort: rounds that these hours usually have, AL expected in them, and
    both as they were."""
    usual, share = _shares(usual_rounds), _shares(rounds)
    expected = np.nan_to_num(np.where(np.isnan(expected), al, expected))
    seen = np.where(rounds > 0, np.nan_to_num(al), expected)
    typical, mixed, now = usual @ expected, share @ expected, share @ seen
    return RecentParts(
        mean, float(now), float(typical - mean), float(mixed - typical), float(now - mixed)
    )


def _shares(rounds: FloatArray) -> FloatArray:
    return divide(rounds, rounds.sum(), 0.0)
