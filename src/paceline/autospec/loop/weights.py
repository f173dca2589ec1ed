"""Whether a cohort's weights are trained, once its corpus has done what it can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.autospec.drift import (
    DriftDecision,
    DriftReport,
    FallenCohort,
    Ledger,
    LedgerEntry,
    LedgerKind,
    RetrainWorth,
)
from paceline.autospec.drift.worth import objections, retrain_worth
from paceline.autospec.loop.change import ChangeTools
from paceline.autospec.loop.decide import HOUR, NO_LOOK_UPS, LoopAction, LoopDecision
from paceline.autospec.loop.journal import ChangeOrigin, ChangeRecord, ChangeStage
from paceline.autospec.loop.seen import SeenCohort
from paceline.autospec.loop.training import network_of, synthetic_set
from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.store import ALL, DrafterStore
from paceline.core import InvalidRequest

DAY = 86400.0
KIND = "weights"  # of these decisions
COMES_AFTER = (ChangeOrigin.DRIFT, ChangeOrigin.WEIGHTS)


@dataclass(frozen=True, slots=True)
class WeightsCase:
    """A cohort whose corpus is over, or that can have none.

    fallen   its AL before the fall, and now, with what the corpus has won back
    corpus   what became of the corpus, in a sentence
    since    when that was, seconds since the epoch
    missing  what a training lacks, in sentences
    source   what it learns from, in a sentence; "" where that is the cohort's answers
    """

    fallen: FallenCohort
    corpus: str
    since: float
    missing: tuple[str, ...] = ()
    source: str = ""


def weights_decisions(
    cases: Sequence[WeightsCase], ledger: Ledger, now: float, policy: AutospecPolicy
) -> Iterator[LoopDecision]:
    """Yield what is done about the weights of each cohort. `ledger` has the trainings of weights;
    its times and `now` are those of drift."""
    for case in cases:
        fallen = case.fallen
        worth = weights_worth(fallen, policy)
        against = (*objections([fallen], worth, ledger, now, policy.retrain), *case.missing)
        action = LoopAction.WAIT if against else LoopAction.TRAIN
        why = [
            f"AL of {fallen.label} was {fallen.before:.2f} before it fell. {case.corpus} It is "
            f"{fallen.now:.2f} now."
        ]
        if worth.pays:
            why.append(
                f"Training is expected to save {worth.hours_saved:.1f} accelerator hours in "
                f"{policy.retrain.horizon_days:g} days, worth {worth.gain:.2f}, and to cost "
                f"{worth.cost:.2f}."
            )
            why += [case.source] if case.source else []
        yield LoopDecision(
            KIND,
            action if worth.pays else LoopAction.NOTHING,
            (fallen.label,),
            case.since,
            worth.gain,
            worth.cost,
            tuple(why),
            against,
        )


def weights_worth(fallen: FallenCohort, policy: AutospecPolicy) -> RetrainWorth:
    """Return what training a cohort's weights would save, where they reach what is aimed at."""
    aimed = replace(fallen, before=fallen.before * policy.training.aim)
    return retrain_worth([aimed], policy.retrain)


def weights_cases(tools: ChangeTools, seen: Sequence[SeenCohort], now: float) -> list[WeightsCase]:
    """Return the cohorts whose weights are next: a corpus for their fall is over, still decides
    what serves them, and no training came after it. Raises InvalidRequest for traces that cannot be
    read."""
    changes = tools.journal.changes()
    busy = {change.cohort for change in changes if change.ended is None}
    latest: dict[str, ChangeRecord] = {}
    for change in changes:  # the newest first
        if change.origin in COMES_AFTER and not _may_try_again(tools, change, now):
            latest.setdefault(change.cohort, change)
    return [
        _case(tools, change, {each.cohort: each for each in seen}, now)
        for cohort, change in latest.items()
        if cohort not in busy and _is_next(tools, change, changes, now)
    ]


def first_cases(
    tools: ChangeTools, reports: Sequence[DriftReport], now: float
) -> list[WeightsCase]:
    """Return the cohorts whose weights are first, since what serves does not look answers up in a
    corpus: their acceptance fell, and no training was tried for that fall. Raises InvalidRequest
    for traces that cannot be read."""
    changes, cases = tools.journal.changes(), []
    for report in reports:
        if report.decision is not DriftDecision.RETRAIN:
            continue
        tried = {change.cohort for change in changes if _is_tried(tools, change, report.start, now)}
        for fallen in report.fallen:
            if fallen.label not in tried and _serving(tools.store, fallen.label) is not None:
                missing, source = _needs_that_pay(tools, fallen, now)
                cases.append(WeightsCase(fallen, NO_LOOK_UPS, report.start, missing, source))
    return cases


def _is_tried(tools: ChangeTools, change: ChangeRecord, start: float, now: float) -> bool:
    """Return whether a change is under way, or was the training for a fall since `start`."""
    if change.ended is None:
        return True
    is_training = change.origin is ChangeOrigin.WEIGHTS and change.ended >= start
    return is_training and not _may_try_again(tools, change, now)


def _may_try_again(tools: ChangeTools, change: ChangeRecord, now: float) -> bool:
    """Return whether a change was a training that could not begin, as with too few different
    answers, and that ended as long ago as a corpus must have that is built again."""
    if change.origin is not ChangeOrigin.WEIGHTS or change.ended is None:
        return False
    has_begun = change.progress.job is not None
    return not has_begun and now - change.ended >= tools.policy.corpus.retry_hours * HOUR


def weights_trainings(changes: Sequence[ChangeRecord]) -> list[LedgerEntry]:
    """Return the trainings of weights, the oldest first. Corpora are none: they cost no
    training."""
    entries = [
        LedgerEntry(LedgerKind.TRAINING, change.created, frozenset({change.cohort}), change.ended)
        for change in changes
        if change.origin is ChangeOrigin.WEIGHTS and change.progress.job is not None
    ]
    return sorted(entries, key=lambda entry: entry.time)


def _is_next(
    tools: ChangeTools, change: ChangeRecord, changes: Sequence[ChangeRecord], now: float
) -> bool:
    """Return whether a change was a corpus that is over, for a fall that is not forgotten yet, and
    nobody has decided otherwise since."""
    if change.origin is not ChangeOrigin.DRIFT or change.progress.fall is None:
        return False
    ended = change.ended
    horizon = tools.policy.retrain.horizon_days * tools.policy.drift.day_seconds
    if ended is None or now - ended > horizon:
        return False
    renewed = {
        later.version
        for later in changes
        if later.cohort == change.cohort and later.origin is ChangeOrigin.RENEWAL
    }
    expected = {change.version, *renewed} if _is_live(change) else {change.replaces}
    return _serving(tools.store, change.cohort) in expected


def _case(
    tools: ChangeTools, change: ChangeRecord, seen: Mapping[str, SeenCohort], now: float
) -> WeightsCase:
    fall, ended = change.progress.fall, change.ended
    assert fall is not None and ended is not None, "_is_next has looked"
    missing, al = [], fall.now
    corpus = f"Its corpus {change.version} was given up: {change.reason}."
    if _is_live(change):
        corpus = f"Its corpus {change.version} is live."
        measured = _measured(tools, change, seen, now)
        if measured is not None:
            al = measured
        elif change.progress.gain is not None:
            al *= 1 + change.progress.gain
        else:
            missing.append(f"Nobody measured what {change.version} has won back.")
    fallen = FallenCohort(change.cohort, fall.share, al, fall.before)
    lacks, source = _needs_that_pay(tools, fallen, now)
    return WeightsCase(fallen, corpus, ended, (*missing, *lacks), source)


def _measured(
    tools: ChangeTools, change: ChangeRecord, seen: Mapping[str, SeenCohort], now: float
) -> float | None:
    """Return a cohort's AL of the last day; None until its corpus has been live for a day, and
    where there are too few requests to judge by."""
    drift, there = tools.policy.drift, seen.get(change.cohort)
    assert change.ended is not None, "it is live"
    if there is None or now - change.ended < drift.day_seconds:
        return None
    return there.al if there.requests >= drift.least_requests else None


def _needs_that_pay(
    tools: ChangeTools, fallen: FallenCohort, now: float
) -> tuple[tuple[str, ...], str]:
    """Return what a training lacks and what it learns from, as _needs(); nothing where it does not
    pay anyway."""
    if not weights_worth(fallen, tools.policy).pays:
        return (), ""
    missing, source = _needs(tools, fallen.label, now)
    return tuple(missing), source


def _needs(tools: ChangeTools, cohort: str, now: float) -> tuple[list[str], str]:
    """Return what a training lacks, in sentences, and what it learns from besides answers."""
    policy = tools.policy.training
    if policy.template is None:
        return ["Not trained: the policy names no template of a job (training.template)."], ""
    if tools.trainer.model is None:
        return ["Not trained: there is no --model to train for."], ""
    missing, synthetic = [], None
    name = _serving(tools.store, cohort)
    assert name is not None, "those that nothing serves are no case"
    version = tools.store.version(name)
    try:
        network_of(version, tools.store.folders(version), policy.init)
        synthetic = synthetic_set(policy, cohort)
    except InvalidRequest as error:
        missing.append(f"Not trained: {error}.")
    answers = tools.traces.consented(cohort, now - policy.days * DAY, now)
    if answers >= policy.least_answers:
        return missing, ""
    none = "no consented answers" if not answers else "too few consented answers"
    counted = f"{none} ({answers} of {policy.least_answers})"
    if synthetic is not None:
        return missing, f"It learns from the synthetic set {synthetic}: {counted}."
    missing.append(
        f"Not trained: {counted}; capture them with `paceline serve --traces … --traces-tokens`, "
        "or name a set of the app that `paceline synth` made in training.synthetic of the policy."
    )
    return missing, ""


def _serving(store: DrafterStore, cohort: str) -> str | None:
    live = store.live()
    return live.get(cohort, live.get(ALL))


def _is_live(change: ChangeRecord) -> bool:
    return change.stage is ChangeStage.LIVE
