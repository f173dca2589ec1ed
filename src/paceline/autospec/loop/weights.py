"""Whether a cohort's weights are trained, once its corpus has done what it can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.autospec.drift import FallenCohort, Ledger, LedgerEntry, LedgerKind
from paceline.autospec.drift.worth import objections, retrain_worth
from paceline.autospec.loop.change import ChangeTools
from paceline.autospec.loop.decide import LoopAction, LoopDecision
from paceline.autospec.loop.journal import ChangeOrigin, ChangeRecord, ChangeStage
from paceline.autospec.loop.training import network_of, synthetic_set
from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.store import ALL, DrafterStore
from paceline.core import InvalidRequest

DAY = 86400.0
KIND = "weights"  # of these decisions
COMES_AFTER = (ChangeOrigin.DRIFT, ChangeOrigin.WEIGHTS)


@dataclass(frozen=True, slots=True)
class WeightsCase:
    """A cohort whose corpus is over.

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
        worth = retrain_worth([fallen], policy.retrain)
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


def weights_cases(tools: ChangeTools, now: float) -> list[WeightsCase]:
    """Return the cohorts whose weights are next: a corpus for their fall is over, still decides
    what serves them, and no training came after it. Raises InvalidRequest for traces that cannot be
    read."""
    changes = tools.journal.changes()
    busy = {change.cohort for change in changes if change.ended is None}
    latest: dict[str, ChangeRecord] = {}
    for change in changes:  # the newest first
        if change.origin in COMES_AFTER:
            latest.setdefault(change.cohort, change)
    return [
        _case(tools, change, now)
        for cohort, change in latest.items()
        if cohort not in busy and _is_next(tools, change, changes, now)
    ]


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


def _case(tools: ChangeTools, change: ChangeRecord, now: float) -> WeightsCase:
    fall, ended = change.progress.fall, change.ended
    assert fall is not None and ended is not None, "_is_next has looked"
    missing, al = [], fall.now
    corpus = f"Its corpus {change.version} was given up: {change.reason}."
    if _is_live(change):
        corpus = f"Its corpus {change.version} is live."
        measured = _measured(tools, change, now)
        if measured is not None:
            al = measured
        elif change.progress.gain is not None:
            al *= 1 + change.progress.gain
        else:
            missing.append(f"Nobody measured what {change.version} has won back.")
    fallen = FallenCohort(change.cohort, fall.share, al, fall.before)
    source = ""
    if retrain_worth([fallen], tools.policy.retrain).pays:
        lacks, source = _needs(tools, change, now)
        missing += lacks
    return WeightsCase(fallen, corpus, ended, tuple(missing), source)


def _measured(tools: ChangeTools, change: ChangeRecord, now: float) -> float | None:
    """Return the AL of a cohort's requests of the last day, since its corpus went live; None for
    fewer than the policy judges by."""
    assert change.ended is not None
    drift, version = tools.policy.drift, _serving(tools.store, change.cohort)
    since = max(change.ended, now - drift.day_seconds)
    requests, al = tools.traces.drafted(change.cohort, version or "", since, now)
    return al if requests >= drift.least_requests else None


def _needs(tools: ChangeTools, change: ChangeRecord, now: float) -> tuple[list[str], str]:
    """Return what a training lacks, in sentences, and what it learns from besides answers."""
    policy = tools.policy.training
    if policy.template is None:
        return ["Not trained: the policy names no template of a job (training.template)."], ""
    if tools.trainer.model is None:
        return ["Not trained: there is no --model to train for."], ""
    missing, synthetic = [], None
    version = tools.store.version(_serving(tools.store, change.cohort) or change.replaces)
    try:
        network_of(version, tools.store.folders(version), policy.init)
        synthetic = synthetic_set(policy, change.cohort)
    except InvalidRequest as error:
        missing.append(f"Not trained: {error}.")
    answers = tools.traces.consented(change.cohort, now - policy.days * DAY, now)
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
