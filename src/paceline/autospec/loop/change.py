"""A change: one attempt to replace a cohort's drafter, step by step.

A step may be repeated: it looks at what is done already. What it found and what follows are one
transaction of the store, so a kill leaves the change before the step or behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paceline.autospec.answer_set import held_out
from paceline.autospec.canary import CanaryAction, advanced, begun, judge, observed
from paceline.autospec.jobs import JobState
from paceline.autospec.loop.corpora import CORPORA, made_corpus, spec_with
from paceline.autospec.loop.journal import ChangeOrigin, ChangeRecord, ChangeStage, LoopJournal
from paceline.autospec.loop.observe import CanaryArms, TraceFolder
from paceline.autospec.loop.reconcile import NotLoaded
from paceline.autospec.loop.routed import routed_cohorts
from paceline.autospec.loop.training import (
    TrainingOrder,
    WeightsTrainer,
    network_of,
    spec_trained,
    synthetic_answers,
    synthetic_set,
)
from paceline.autospec.policy import AutospecPolicy, CorpusPolicy, TrainingPolicy
from paceline.autospec.store import (
    ALL,
    Author,
    DrafterStore,
    DrafterVersion,
    TargetIdentity,
    VersionState,
)
from paceline.autospec.store.records import CORPUS
from paceline.autospec.store.store import UNKNOWN_TARGET
from paceline.core import InvalidRequest, PacelineError
from paceline.drafters.corpus_folder import CorpusAnswer

log = logging.getLogger(__name__)
ACTOR = "autospec"
SETTLED_SECONDS = 30.0  # after which a request that ended is in the traces
DAY = 86400.0
HELD_OUT = "answers held out"
SCORED_ON = f"{HELD_OUT}, all rounds"
Measured = tuple[float, float, float, int]  # tokens per round, incl. bonus, interval, rounds


class CohortScorer(Protocol):
    """Scores specs on answers of one cohort: what each would have accepted."""

    def __call__(
        self, specs: Mapping[str, str], answers: Sequence[CorpusAnswer]
    ) -> Mapping[str, Measured]:
        """Return the scores by name. Raises InvalidRequest where no answer can be scored."""
        ...


@dataclass(frozen=True, slots=True)
class ChangeTools:
    """What changes work with. `scorer` is None where nothing is scored; `target` is what is known
    of the target besides what versions say; `trainer` trains weights."""

    store: DrafterStore
    journal: LoopJournal
    traces: TraceFolder
    policy: AutospecPolicy
    clock: Callable[[], float]
    trainer: WeightsTrainer
    scorer: CohortScorer | None = None
    target: TargetIdentity = UNKNOWN_TARGET


@dataclass(frozen=True, slots=True)
class ChangeStep:
    """One step of a change, with what it may look at: the versions that a server is ready to route
    to, and why it has not loaded others."""

    tools: ChangeTools
    change: ChangeRecord
    ready: Collection[str]
    missing: NotLoaded

    def take(self) -> None:
        """Take the change one step on, if one is due. Raises StoreError and InvalidRequest; the
        latter for traces that cannot be read."""
        if self._is_overtaken():
            return
        match self.change.stage:
            case ChangeStage.BUILDING:
                self._build()
            case ChangeStage.TRAINING:
                self._train()
            case ChangeStage.SCORING:
                self._score()
            case ChangeStage.LOADING:
                self._load()
            case ChangeStage.CANARY:
                self._watch()

    def _is_overtaken(self) -> bool:
        """End the change where it has no point any more; return whether that is so."""
        change, tools = self.change, self.tools
        live = tools.store.live()
        now_live = live.get(change.cohort, live.get(ALL))
        version = tools.store.find(change.version)
        if now_live == change.version:
            tools.journal.update(change, tools.clock(), ChangeStage.LIVE, "promoted by hand")
        elif version is not None and version.state is VersionState.RETIRED:
            self._stop("it was retired by hand")
        elif now_live != change.replaces:
            reason = f"{change.replaces}, which it would replace, is not live any more"
            if change.origin is ChangeOrigin.PUSHED:  # it is tried again, beside the one that is
                tools.journal.update(change, tools.clock(), ChangeStage.STOPPED, reason)
            else:
                self._stop(reason)
        elif change.version in self.missing.refused:
            self._stop(f"it cannot be loaded: {self.missing.refused[change.version]}")
        else:
            return False
        return True

    # -- the steps --------------------------------------------------------------------------------

    def _build(self) -> None:
        """Build the corpus, and put it into the store as a version."""
        tools, change = self.tools, self.change
        try:
            self._fill(tools.store.version(change.replaces))
        except InvalidRequest as error:
            self._stop(str(error))
        else:
            tools.journal.update(change, tools.clock(), ChangeStage.SCORING)

    def _registered(self, parent: DrafterVersion, made: str) -> DrafterVersion:
        """Return the version that is `made` here, which the store knows then."""
        tools, change = self.tools, self.change
        version = tools.store.find(change.version)
        if version is None:
            why = self._author(f"{made} for {change.cohort or 'all requests'}")
            version = tools.store.register(
                change.version, why, parent=parent.name, target=tools.target
            )
        return version

    def _fill(self, parent: DrafterVersion) -> None:
        tools, change, store = self.tools, self.change, self.tools.store
        version = self._registered(parent, "a corpus")
        if version.state is VersionState.REGISTERED:
            known = version.target.completed(parent.target).completed(tools.target)
            folder = made_corpus(
                self._root,
                change.cohort,
                self._answers(),
                known,
                tools.policy.corpus,
                tools.clock(),
            )
            spec = spec_with(parent, store.folders(parent), folder)
            store.complete(version.name, spec, self._author("built from the cohort's answers"))

    def _train(self) -> None:
        """Have a job train the version, and put what it made into the store."""
        tools, change = self.tools, self.change
        try:
            if self._is_trained(tools.store.version(change.replaces)):
                tools.journal.update(change, tools.clock(), ChangeStage.SCORING)
        except InvalidRequest as error:
            self._stop(f"not trained: {error}")

    def _is_trained(self, parent: DrafterVersion) -> bool:
        """Return whether the version's weights are in the store; see that its job runs."""
        tools, change, store = self.tools, self.change, self.tools.store
        version, folders = self._registered(parent, "weights"), store.folders(parent)
        if version.state is not VersionState.REGISTERED:
            return True
        job = tools.trainer.job(version.name)
        if job is None and self._turns_synthetic():
            return False
        if job is None:
            known = version.target.completed(parent.target).completed(tools.target)
            init = network_of(parent, folders, tools.policy.training.init)
            synthetic = change.progress.synthetic
            order = TrainingOrder(
                version.name, change.cohort, self._answers(), known, init, synthetic
            )
            job = tools.trainer.start(order, tools.clock())
        if change.progress.job is None:
            tools.journal.update(change, tools.clock(), ChangeStage.TRAINING, job=job.id)
            return False
        if not job.state.is_over:
            return False
        if job.state is JobState.FAILED or job.checkpoint is None:
            self._stop(f"not trained: job {job.id} {job.state}: {job.reason or 'it left nothing'}")
            return False
        corpus = self._fresh_corpus(parent)
        spec = spec_trained(parent, folders, Path(job.checkpoint), corpus, tools.clock())
        told = f"trained by job {job.id} in {job.spent:.0f} s, from {parent.name}"
        told += "" if corpus is None else ", with a corpus of the same days"
        store.complete(version.name, spec, self._author(told))
        return True

    def _fresh_corpus(self, parent: DrafterVersion) -> Path | None:
        """Return a corpus of the days that the weights have learnt from. None where `parent` has
        none, for weights of a synthetic set, and for answers that are too few or unreadable."""
        policy, change = self.tools.policy, self.change
        if CORPUS not in parent.artefacts or change.progress.synthetic:
            return None
        known, now = parent.target.completed(self.tools.target), self.tools.clock()
        taken = policy.corpus.model_copy(update={"held_out": policy.training.held_out})
        try:
            return made_corpus(self._root, change.cohort, self._answers(), known, taken, now)
        except InvalidRequest as error:
            log.info("%s keeps the corpus of %s: %s", change.version, parent.name, error)
            return None

    def _turns_synthetic(self) -> bool:
        """Return whether the change was just given a synthetic set: there are too few answers. It
        is noted before a job starts, so that it is the same after a kill."""
        tools, change = self.tools, self.change
        policy = tools.policy.training
        if change.progress.synthetic or len(self._answers()) >= policy.least_answers:
            return False
        folder = synthetic_set(policy, change.cohort)
        if folder is not None:
            tools.journal.update(change, tools.clock(), ChangeStage.TRAINING, synthetic=folder)
        return folder is not None

    def _score(self) -> None:
        """Score the version beside the live one on answers that it has not seen."""
        tools, change = self.tools, self.change
        if tools.scorer is None:
            self._go_on("not scored: there is no --model to score with")
            return
        names = (change.replaces, change.version)
        specs = {name: tools.store.spec(tools.store.version(name)) for name in names}
        try:
            scores = tools.scorer(specs, self._held_out())
        except PacelineError as error:  # the canary judges it all the same
            self._go_on(f"not scored: {error}")
            return
        old, new = scores[change.replaces], scores[change.version]
        told = (
            f"tokens per round {new[0]:.2f} ({new[1]:.2f} to {new[2]:.2f}) where {change.replaces} "
            f"has {old[0]:.2f} ({old[1]:.2f} to {old[2]:.2f}), on {self._scored_on}"
        )
        gain = new[0] / old[0] - 1
        least = self._least_gain
        with tools.store.database.transaction():
            for name, values in scores.items():
                tools.store.add_score(
                    name, change.cohort, *values, f"{self._scored_on}, all rounds"
                )
            if gain < least:
                self._stop(f"{told}: a gain of {gain:.1%}; {least:.1%} are needed", gain=gain)
            else:
                straight = tools.policy.corpus.straight and new[1] > old[2]
                is_corpus = change.origin is not ChangeOrigin.WEIGHTS
                self._go_on(told, straight=straight and is_corpus, gain=gain)

    def _load(self) -> None:
        """Wait until it is loaded; then its canary begins, or it goes live."""
        tools, change = self.tools, self.change
        if change.version not in self.ready:
            waiting = self.missing.waiting
            hold = [waiting[change.version]] if change.version in waiting else []
            if hold != change.progress.hold:
                tools.journal.update(change, tools.clock(), ChangeStage.LOADING, hold=hold)
            return
        if change.progress.straight:
            self._go_live(change.progress.score)
            return
        now = tools.clock()
        state = begun(change.version, change.replaces, now, tools.policy.canary)
        with tools.store.database.transaction():
            if tools.store.version(change.version).state is not VersionState.CANARY:
                tools.store.promote(change.version, self._author("loaded"), VersionState.CANARY)
            tools.journal.update(change, now, ChangeStage.CANARY, canary=state, hold=[])

    def _watch(self) -> None:
        """Judge the canary by the requests that have ended since."""
        tools, change, policy = self.tools, self.change, self.tools.policy.canary
        state, now = change.progress.canary, tools.clock()
        assert state is not None, "a canary has its state from its first step on"
        arms = CanaryArms(change.cohort, change.version, change.replaces, self._others())
        since = max(state.through, state.step_began)
        requests = tools.traces.arms(arms, since, now - SETTLED_SECONDS)
        state = observed(state, requests)
        judgement = judge(state, now, policy)
        state = advanced(state, judgement, now, policy)
        why = " ".join(judgement.why)
        if judgement.action is CanaryAction.ROLL_BACK:
            self._stop(why, canary=state)
        elif judgement.action is CanaryAction.PROMOTE:
            worse = judgement.comparisons[0].worse  # of tokens per round
            gain = change.progress.gain if worse is None else -worse
            self._go_live(why, canary=state, gain=gain)
        elif now - state.began > policy.longest_days * DAY:
            self._stop(f"inconclusive: {why}", canary=state)
        else:
            hold = list(judgement.why) if judgement.action is CanaryAction.HOLD else []
            if state != change.progress.canary or hold != change.progress.hold:
                tools.journal.update(change, now, ChangeStage.CANARY, canary=state, hold=hold)

    # -- what follows -----------------------------------------------------------------------------

    def _go_on(self, told: str, **found: Any) -> None:
        """Have servers load it."""
        tools, change = self.tools, self.change
        with tools.store.database.transaction():
            if tools.store.version(change.version).state is VersionState.TRAINED:
                tools.store.promote(change.version, self._author(told), VersionState.SHADOW)
            tools.journal.update(change, tools.clock(), ChangeStage.LOADING, score=told, **found)

    def _go_live(self, reason: str, **found: Any) -> None:
        tools, change = self.tools, self.change
        with tools.store.database.transaction():
            tools.store.promote(
                change.version, self._author(reason), VersionState.LIVE, cohort=change.cohort
            )
            tools.journal.update(change, tools.clock(), ChangeStage.LIVE, reason, **found)
        log.info("%s is live for %s: %s", change.version, change.cohort or "all", reason)

    def _stop(self, reason: str, **found: Any) -> None:
        """Retire the version, unless it serves somebody, and end the change."""
        tools, change = self.tools, self.change
        done = (VersionState.RETIRED, VersionState.LIVE)
        with tools.store.database.transaction():
            version = tools.store.find(change.version)
            if version is not None and version.state not in done:
                tools.store.retire(change.version, self._author(reason))
            tools.journal.update(change, tools.clock(), ChangeStage.STOPPED, reason, **found)
        log.info("the change to %s is stopped: %s", change.version, reason)

    @property
    def _root(self) -> Path:
        """The folder in which the corpus is built."""
        return self.tools.store.folder / CORPORA / str(self.change.id)

    def _answers(self) -> list[CorpusAnswer]:
        """Return the cohort's answers until the change began: the same after a kill."""
        since = self.change.created - self._learning.days * DAY
        return self.tools.traces.answers(self.change.cohort, since, self.change.created)

    def _held_out(self) -> Sequence[CorpusAnswer]:
        """Return answers that the version has not learnt from."""
        synthetic = self.change.progress.synthetic
        if synthetic is not None:
            return synthetic_answers(synthetic, self.change.cohort)
        return held_out(self._answers(), self._learning.held_out)[1]

    @property
    def _scored_on(self) -> str:
        return f"synthetic {HELD_OUT}" if self.change.progress.synthetic else HELD_OUT

    @property
    def _learning(self) -> CorpusPolicy | TrainingPolicy:
        """What the policy says about answers that the version learns from."""
        policy, is_trained = self.tools.policy, self.change.origin is ChangeOrigin.WEIGHTS
        return policy.training if is_trained else policy.corpus

    @property
    def _least_gain(self) -> float:
        """The gain of AL, as a share, without which the version is not tried. A renewal replaces
        answers that must be forgotten: it need not gain, only not lose."""
        match self.change.origin:
            case ChangeOrigin.RENEWAL:
                return -self.tools.policy.canary.guard
            case ChangeOrigin.GROWTH:
                return self.tools.policy.regional.gain
        return self._learning.gain

    def _others(self) -> frozenset[str]:
        """Return the cohorts that have a drafter, a change or shares of their own."""
        tools = self.tools
        changing = {change.cohort for change in tools.journal.active()}
        shared = {routed.cohort for routed in routed_cohorts(tools.store)}
        return frozenset({*tools.store.live(), *changing, *shared} - {ALL})

    def _author(self, reason: str) -> Author:
        return Author(ACTOR, f"change {self.change.id}: {reason}")
