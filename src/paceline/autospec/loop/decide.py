"""From what is seen to what is done: each decision with its cost, its gain, and why not another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from paceline.autospec.drift import DriftDecision, DriftReport, FallenCohort
from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.store import ALL

HOUR = 3600.0
NO_LOOK_UPS = "No corpus: the engine that serves does not look answers up in one."


class LoopAction(StrEnum):
    """What to do."""

    NOTHING = "nothing"
    WAIT = "wait"
    ALERT = "alert"
    OFFER_ROLLBACK = "offer rollback"
    PROPOSE_ROUTES = "propose routes"
    BUILD_CORPUS = "build corpus"  # for a cohort whose acceptance fell
    RENEW_CORPUS = "renew corpus"  # of a live drafter, before it expires
    TRAIN = "train"  # the weights of a cohort's drafter, after its corpus
    TRY = "try"  # a version that somebody pushed
    SHARE_OUT = "share out"  # a cohort's requests among live versions

    @property
    def begins_change(self) -> bool:
        return self in _BEGINNING


_BEGINNING = (
    LoopAction.BUILD_CORPUS,
    LoopAction.RENEW_CORPUS,
    LoopAction.TRAIN,
    LoopAction.TRY,
)


@dataclass(frozen=True, slots=True)
class LoopDecision:
    """A decision about some cohorts; none means all. `kind` is what was found, `start` since when;
    `gain` and `cost` are in the currency of the policy, None where nothing is bought; `why_not`
    says why nothing else is done. `version` is the one that is tried; `fallen` is the cohort's fall
    where a corpus is built for it."""

    kind: str
    action: LoopAction
    cohorts: tuple[str, ...]
    start: float
    gain: float | None = None
    cost: float | None = None
    why: tuple[str, ...] = ()
    why_not: tuple[str, ...] = ()
    version: str = ""
    fallen: FallenCohort | None = None

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "action": str(self.action)}


@dataclass(frozen=True, slots=True)
class Situation:
    """All that decisions depend on. Cohorts are labels; "" stands for all requests that no other
    cohort is live for.

    takes_corpora  whether what serves looks answers up in a corpus
    reports        what drift says
    live           the live version of each cohort that has one
    changing       the version that is under way for a cohort
    failed         when a corpus of a cohort was last given up
    pushed         versions that somebody promoted to canary, with their cohort
    expiring       when the corpus of a cohort's live version expires, where it is time to renew it
    """

    now: float
    takes_corpora: bool = True
    reports: Sequence[DriftReport] = ()
    live: Mapping[str, str] = field(default_factory=dict)
    changing: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, float] = field(default_factory=dict)
    pushed: Mapping[str, str] = field(default_factory=dict)
    expiring: Mapping[str, float] = field(default_factory=dict)

    def serving(self, cohort: str) -> str | None:
        """Return the version that drafts for a cohort; None: the store has none for it."""
        return self.live.get(cohort, self.live.get(ALL))


def decide(situation: Situation, policy: AutospecPolicy) -> list[LoopDecision]:
    """Return the decisions, those that begin a change first. They depend on nothing else."""
    decisions = [*_pushed(situation), *_renewals(situation, policy)]
    for report in situation.reports:
        if report.decision is DriftDecision.RETRAIN:
            decisions += _mended(report, situation, policy)
        else:
            decisions.append(_as_found(report, LoopAction(str(report.decision))))
            decisions += _grown(report, situation, policy)
    return sorted(decisions, key=lambda decision: not decision.action.begins_change)


def _as_found(report: DriftReport, action: LoopAction) -> LoopDecision:
    """Return a decision for what drift says, in its own words."""
    return LoopDecision(
        kind=str(report.kind),
        action=action,
        cohorts=report.cohorts,
        start=report.start,
        gain=None if report.worth is None else report.worth.gain,
        cost=None if report.worth is None else report.worth.cost,
        why=report.why,
        why_not=report.why_not,
    )


def _mended(
    report: DriftReport, situation: Situation, policy: AutospecPolicy
) -> Iterator[LoopDecision]:
    """Yield what is done for each cohort that deserves another drafter: a corpus first, since it
    costs no training. Where what serves takes none, weights are next (loop.weights)."""
    if not situation.takes_corpora:
        yield replace(_as_found(report, LoopAction.NOTHING), why_not=(NO_LOOK_UPS,))
        return
    cost = policy.retrain.canary_hours * policy.retrain.price
    falls = {fallen.label: fallen for fallen in report.fallen}
    gain = None if report.worth is None else report.worth.gain / len(report.cohorts)
    for cohort in report.cohorts:
        against = _obstacle(cohort, situation, policy)
        why_not = [] if against is None else [against]
        if against is None:
            why_not.append("No training: a corpus of the cohort's answers costs none; it is first.")
        yield LoopDecision(
            str(report.kind),
            LoopAction.BUILD_CORPUS if against is None else LoopAction.WAIT,
            (cohort,),
            report.start,
            gain,
            cost,
            report.why,
            (*why_not, *report.why_not),
            fallen=falls.get(cohort),
        )


def _grown(
    report: DriftReport, situation: Situation, policy: AutospecPolicy
) -> Iterator[LoopDecision]:
    """Yield what is done for each cohort that has become a large part of the traffic, and that the
    drafter of all other requests drafts for."""
    if not situation.takes_corpora:
        return
    large, gain = policy.regional.share, policy.regional.gain
    for cohort in report.grown:
        if cohort in situation.live:
            continue
        against = _obstacle(cohort, situation, policy)
        why_not = (
            f"No training: a corpus of its answers costs none, and it is kept from a gain of "
            f"{gain:.0%} on."
        )
        yield LoopDecision(
            str(report.kind),
            LoopAction.BUILD_CORPUS if against is None else LoopAction.WAIT,
            (cohort,),
            report.start,
            cost=policy.retrain.canary_hours * policy.retrain.price,
            why=(
                f"{cohort} has grown to {large:.0%} of the rounds or more, and has no drafter of "
                "its own.",
            ),
            why_not=(why_not if against is None else against,),
        )


def _obstacle(cohort: str, situation: Situation, policy: AutospecPolicy) -> str | None:
    """Say why no corpus is built for a cohort now; None: one is."""
    if situation.serving(cohort) is None:
        return (
            f"No version of the store is live for {cohort}: add the server's drafter with "
            "`paceline drafters add`, and promote it to live."
        )
    if cohort in situation.changing:
        return f"{situation.changing[cohort]} is already under way for {cohort}."
    failed = situation.failed.get(cohort)
    hours = policy.corpus.retry_hours
    if failed is not None and situation.now - failed < hours * HOUR:
        ago = (situation.now - failed) / HOUR
        return (
            f"A corpus for {cohort} was given up {ago:.1f} hours ago; the next one is built after "
            f"{hours:g} hours."
        )
    return None


def _renewals(situation: Situation, policy: AutospecPolicy) -> Iterator[LoopDecision]:
    for cohort, expires in situation.expiring.items():
        if cohort in situation.changing:
            continue
        hours = (expires - situation.now) / HOUR
        until = f"expires in {hours:.1f} hours" if hours > 0 else "has expired"
        failed = situation.failed.get(cohort, 0.0)
        waits = situation.now - failed < policy.corpus.retry_hours * HOUR
        yield LoopDecision(
            "renewal",
            LoopAction.WAIT if waits else LoopAction.RENEW_CORPUS,
            (cohort,),
            situation.now,
            why=(
                f"The corpus of {situation.live[cohort]} {until}; its answers must be forgotten.",
            ),
            why_not=("Its last renewal was given up not long ago.",) if waits else (),
        )


def _pushed(situation: Situation) -> Iterator[LoopDecision]:
    for version, cohort in situation.pushed.items():
        live = situation.serving(cohort)
        against = None
        if live is None:
            against = "No version of the store is live to compare it with: promote one to live."
        elif cohort in situation.changing:
            against = f"{situation.changing[cohort]} is tried first."
        yield LoopDecision(
            "pushed",
            LoopAction.TRY if against is None else LoopAction.WAIT,
            (cohort,),
            situation.now,
            why=(f"{version} was promoted to canary by hand.",),
            why_not=() if against is None else (against,),
            version=version,
        )
