"""The regional test: when some cohorts deserve a drafter of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.autospec.policy import RegionalPolicy
from paceline.core import InvalidRequest


@dataclass(frozen=True, slots=True)
class RegionalAdvice:
    """Cohorts for which to build a drafter; none where it does not pay, and why (not).

    gains     AL of the cohort's own drafter over the live one's, minus 1
    share     of all rounds that have a gain that counts
    recovered share of these gains that one joint drafter has; None where none was scored
    """

    cohorts: tuple[str, ...]
    gains: Mapping[str, float]
    share: float
    recovered: float | None
    why: str


def regional_advice(
    rounds: Mapping[str, float],
    live: Mapping[str, float],
    special: Mapping[str, float],
    joint: Mapping[str, float],
    policy: RegionalPolicy,
) -> RegionalAdvice:
    """Judge drafters of the cohorts' own by their ALs on the same traces.

    rounds    of each cohort; `live` is the AL of its live drafter
    special   AL of a drafter of its own, for cohorts that have one
    joint     AL of one drafter of the same size that learnt from all these cohorts together
    """
    for field, values in (("live", live), ("special", special), ("joint", joint)):
        for cohort in values:
            if cohort not in rounds:
                raise InvalidRequest(f"{field}.{cohort}", cohort, "a cohort that `rounds` has too")
    absent = [cohort for cohort in special if cohort not in live]
    if absent:
        raise InvalidRequest(f"live.{absent[0]}", None, "the AL of the cohort's live drafter")
    gains = {cohort: al / live[cohort] - 1 for cohort, al in special.items()}
    high = [cohort for cohort, gain in gains.items() if gain >= policy.gain]
    total = sum(rounds.values())
    share = sum(rounds[cohort] for cohort in high) / total if total else 0.0
    if not high or share < policy.share:
        best = max(gains.values(), default=0.0)
        why = (
            f"Drafters of their own gain at least {policy.gain:.0%} for {share:.0%} of the rounds; "
            f"{policy.share:.0%} are needed. The largest gain is {best:.1%}."
        )
        return RegionalAdvice((), gains, share, None, why)
    if any(cohort not in joint for cohort in high):
        why = "Train and score one drafter for all these cohorts first: it may do as well."
        return RegionalAdvice((), gains, share, None, why)
    own = sum(rounds[cohort] * (special[cohort] - live[cohort]) for cohort in high)
    shared = sum(rounds[cohort] * (joint[cohort] - live[cohort]) for cohort in high)
    recovered = shared / own
    if recovered >= policy.joint:
        why = f"One joint drafter has {recovered:.0%} of the gain: take that one."
        return RegionalAdvice((), gains, share, recovered, why)
    why = (
        f"Drafters of their own gain {own / sum(rounds[c] * live[c] for c in high):.1%} for "
        f"{share:.0%} of the rounds, and one joint drafter has {recovered:.0%} of that."
    )
    return RegionalAdvice(tuple(high), gains, share, recovered, why)
