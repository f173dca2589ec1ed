"""Whether training a drafter anew is worth it, and whether it may happen now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from paceline.autospec.drift.cells import DAY
from paceline.autospec.drift.ledger import Ledger
from paceline.autospec.drift.report import FallenCohort, RetrainWorth
from paceline.autospec.policy import RetrainPolicy

Speedup = Callable[[float], float]  # of an AL, over decoding without drafts


def plain_speedup(policy: RetrainPolicy) -> Speedup:
    """Return the speedup where a drafted round costs `round_cost` plain ones. Where that is below
    1, speculation is switched off."""
    return lambda al: max(1.0, al / policy.round_cost)


def retrain_worth(
    cohorts: Sequence[FallenCohort], policy: RetrainPolicy, speedup: Speedup | None = None
) -> RetrainWorth:
    """Return what training would save over the horizon, and what it costs.

    Saved hours = Σ share · (1 − speedup(AL) ÷ speedup(AL after)) · hours a day · horizon · chance
    that the change lasts. The work stays the same, so this is time saved.
    """
    speedup = speedup or plain_speedup(policy)
    saved = 0.0
    for cohort in cohorts:
        after = cohort.now + policy.recovery * max(0.0, cohort.before - cohort.now)
        saved += cohort.share * (1 - speedup(cohort.now) / speedup(after))
    hours = saved * policy.gpu_hours_per_day * policy.horizon_days * policy.persistence
    cost = (policy.training_hours + policy.canary_hours) * policy.price
    return RetrainWorth(hours, hours * policy.price, cost)


def objections(
    cohorts: Sequence[FallenCohort],
    worth: RetrainWorth,
    ledger: Ledger,
    now: float,
    policy: RetrainPolicy,
) -> Iterator[str]:
    """Yield the reasons against training now, in sentences."""
    for cohort in cohorts:
        running = ledger.training(cohort.label)
        last = ledger.last_change(cohort.label)
        if running is not None:
            yield f"Another drafter for {cohort.label} is under way already."
        elif last is not None and now - last < policy.cool_down_days * DAY:
            days = (now - last) / DAY
            yield (
                f"The drafter of {cohort.label} was trained or swapped {days:.1f} days ago; the "
                f"cool-down is {policy.cool_down_days:g} days."
            )
    recent = ledger.trainings_since(now - 7 * DAY)
    if recent >= policy.per_week:
        yield f"{recent} trainings began in the last seven days; the budget is {policy.per_week}."
    if not worth.pays:
        yield (
            f"Training would save {worth.hours_saved:.2f} accelerator hours, worth "
            f"{worth.gain:.2f}, and cost {worth.cost:.2f}."
        )
