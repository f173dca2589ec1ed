"""The engine: plan, draft, forward, verify, commit. One step() is one round for everybody."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from paceline.core import (
    DraftPolicy,
    FinishReason,
    OutputDelta,
    Request,
    StepInfo,
    TokenKind,
)
from paceline.core.spans import OFF, Spans
from paceline.drafters.base import Drafter, ObservedRows
from paceline.engine.admission import Admission
from paceline.engine.baseline import Baseline
from paceline.engine.branches import TreeRoom
from paceline.engine.config import EngineConfig, EngineStats
from paceline.engine.costs import Costs
from paceline.engine.draft import no_draft
from paceline.engine.drafting import Drafting
from paceline.engine.grammar import Compiler
from paceline.engine.judging import Judge, JudgedRound
from paceline.engine.kv_cache import KVCache
from paceline.engine.lineup import Lineup
from paceline.engine.masks import Grammars
from paceline.engine.memory import MemoryPlan
from paceline.engine.newcomers import DrafterBuilder
from paceline.engine.prompt_share import PromptShare
from paceline.engine.quality import Quality
from paceline.engine.roster import Roster, recover, try_out_target
from paceline.engine.rounds import RoundMaker, explained
from paceline.engine.routes import Routes
from paceline.engine.runner import Runner
from paceline.engine.scheduler import Plan, Scheduled, Scheduler, looking_back
from paceline.engine.verify import Verifier, make_verifier
from paceline.models.batch import Network
from paceline.models.tokenizer import Tokenizer

SCORED_BYTES = 32 * 2**20  # of the logits that a step may hold for log-probabilities of prompts


@dataclass(slots=True)
class _Progress:
    """The progress of a step, from which a failed step is undone."""

    plan: Plan | None = None
    ended: list[OutputDelta] = field(default_factory=list)  # of requests that are gone already


class Engine:
    """Continuous batching with speculation over one target. Single-threaded: one owner calls it.

    `engine.build.build_engine` makes one from an EngineConfig.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        model_name: str,
        network: Network,
        tokenizer: Tokenizer,
        eos_ids: frozenset[int],
        plan: MemoryPlan,
        backend: str,
        quality: Quality | None,
        drafters: Mapping[str, Drafter],
        costs: Costs,
        builder: DrafterBuilder,
    ) -> None:
        """The first of `drafters`, which are attached, is the default. `backend` says which network
        runs, and why; `quality` is what quantising costs, None where nothing is quantised. Chunks
        of prompts and draft lengths follow `costs`, which the steps refine. `builder` makes the
        drafters that join later."""
        max_model_len = plan.max_model_len
        self.config, self.model_name = config, model_name
        self.tokenizer, self.eos_ids = tokenizer, eos_ids
        self.vocab_size, self.max_model_len = network.vocab_size, max_model_len
        self.drafters = dict(drafters)
        self.cache = KVCache(plan.num_blocks, config.prefix_cache)
        self.scheduler = Scheduler(
            self.cache,
            cost=costs.step,
            max_num_seqs=config.max_num_seqs,
            token_budget=config.token_budget,
            share=PromptShare(config.max_stretch, config.ttft_goal, config.tpot_goal),
            most_scored=max(1, SCORED_BYTES // (4 * network.vocab_size)),
        )
        self.runner = Runner(
            network,
            max_num_seqs=config.max_num_seqs,
            max_model_len=max_model_len,
            branches=plan.branch_blocks,
        )
        verifier = make_verifier(config.rule, config.synthetic)
        self._rounds = RoundMaker(self.drafters, config.rule)
        self.grammars = Grammars(Compiler(tokenizer, network.vocab_size, eos_ids))
        room = None
        if config.draft_tree:
            room = TreeRoom(
                config.draft_tree, config.token_budget, plan.num_blocks, plan.branch_blocks
            )
        self.drafting = Drafting(
            self.drafters, self.cache, self.grammars, costs, needs_q=verifier.needs_q, room=room
        )
        self._counters = EngineStats()
        self._roster = Roster(
            tokenizer,
            self.cache,
            self.scheduler,
            self.runner,
            self.grammars,
            self.drafting,
            self._rounds,
            self._counters,
        )
        specs = dict(zip(drafters, config.drafter_specs, strict=True))
        self.lineup = Lineup(self.drafters, specs, self.drafting, self._roster)
        self._judge = Judge(verifier, self.drafting, self._roster, self.runner)
        self.baseline = Baseline()
        self.admit_by(
            Admission(
                network.vocab_size,
                max_model_len,
                eos_ids,
                dict(drafters),
                Routes(default=next(iter(drafters), None)),
                config.seed,
                DraftPolicy.parse(config.draft_policy),
                config.holdback,
                rule=config.rule,
                compiled=self.grammars.compiler.compiled,
            )
        )
        self.plan, self.quality, self.backend = plan, quality, backend
        self.builder = builder
        self.spans: Spans = OFF
        self._inference = torch.inference_mode()  # to make one takes as long as a plain round

    def admit_by(self, admission: Admission) -> None:
        """Make requests within these limits, for these drafters and routes, from now on."""
        self.admission, self.make_requests = admission, admission.make_requests

    @property
    def default_drafter(self) -> str | None:
        """The drafter of requests that name none and match no route."""
        return self.admission.routes.default

    @property
    def verifier(self) -> Verifier:
        """The rule by which drafts are judged."""
        return self._judge.verifier

    @verifier.setter
    def verifier(self, verifier: Verifier) -> None:
        self._judge.verifier = verifier

    def record(self, spans: Spans) -> None:
        """Every step from now on tells `spans` where its time goes; OFF ends that. The text of a
        request is watched if it is added later."""
        self.spans = spans
        self._judge.record(spans)
        self.runner.record(spans)
        self.drafting.record(spans)

    def add(self, requests: Iterable[Request]) -> list[OutputDelta]:
        """Queue requests, without bound: a server bounds its queue before it comes here. Returns
        the deltas of those that failed at once."""
        opened = [self._roster.open(request, self.spans) for request in requests]
        return [delta for delta in opened if delta is not None]

    def abort(self, request_id: str) -> OutputDelta | None:
        """Ends a stream at once and frees its memory; None when it is not there (any more)."""
        request = self._roster.requests.get(request_id)
        if request is None:
            return None
        self._roster.close(request, FinishReason.ABORT)
        return self._roster.delta(request)

    @property
    def has_work(self) -> bool:
        return bool(self._roster.requests)

    def stats(self) -> EngineStats:
        """A snapshot: counters since the start, gauges of now."""
        counters = self._counters
        return replace(
            counters,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            prompting=sum(not request.decoding for request in self.scheduler.running),
            kv_usage=self.cache.usage,
            kv_blocks_total=self.cache.num_blocks,
            kv_blocks_free=self.cache.free_blocks,
            speculation=counters.speculation.copy(),
            decode_seconds=self.baseline.seconds,
            ar_seconds=self.baseline.ar_seconds,
            speedup_vs_ar=self.baseline.speedup,
            requests_finished=dict(counters.requests_finished),
        )

    def check_integrity(self) -> None:
        """Raises AssertionError when a block of KV is leaked, shared wrongly or freed twice."""
        self.cache.check_integrity(self.scheduler.running)

    def step(self) -> list[OutputDelta]:
        """Run one round and return what it added to each stream that got something.

        An error in a step ends the requests that it may have harmed with finish reason `error`; the
        others go on. Raises EngineFailed when the engine cannot go on.
        """
        progress = _Progress()
        with self._inference:
            try:
                with self.spans("step"):
                    deltas = self._step(progress)
            except Exception as error:
                deltas = progress.ended + recover(self._roster, progress.plan, error)
            if self._roster.target_in_doubt:
                try_out_target(self._roster, self.model_name, self.max_model_len)
        return deltas

    def fail(self, request_ids: Iterable[str], error: Exception) -> list[OutputDelta]:
        """End requests on an error outside a step; those that are gone are left out."""
        held = self._roster.requests
        return [self._roster.fail(held[name], error) for name in request_ids if name in held]

    def _step(self, progress: _Progress) -> list[OutputDelta]:
        with self.spans("schedule"):
            plan = progress.plan = self.scheduler.plan(self._draft_length)
            for request in plan.preempted:
                self._roster.leave(request)
                self._counters.preemptions += 1
            self._begin(plan.admitted)
        if not plan.scheduled:
            return []
        drafting = self.drafting.seconds
        self._draft(plan.scheduled)
        self.scheduler.observe_drafts(plan)
        start = time.perf_counter()
        building = self.grammars.build(plan.scheduled)
        layers = self.drafting.choose_taps(plan.scheduled)
        logits = self._judge.reads_logits(plan)
        output = self.runner.forward(plan.scheduled, layers, logits=logits)
        with self.spans("grammar"):
            masks = {} if building is None else building.result()
        judged, observed = self._judge(plan, output, masks, progress.ended)
        seconds = time.perf_counter() - start
        if observed:
            self._observe(observed)
        drafting = self.drafting.seconds - drafting
        deltas = self._report(plan.scheduled, judged, seconds, drafting)
        with self.spans("settle"):
            going_on = self._settle_all(plan.scheduled, deltas, progress.ended)
        self._counters.steps += 1
        self.spans.count(plan.counts, [each.entry for each in judged], deltas)
        return progress.ended + going_on

    def _begin(self, admitted: list[Request]) -> None:
        for request in admitted:
            self.runner.begin(request)
            if request.preemptions == 0:
                self._counters.prompt_tokens += request.prompt_len
                self._counters.prefix_queries += request.prompt_len
                self._counters.prefix_hits += request.cached_tokens
        try:
            self.drafting.begin(admitted)
        except Exception as error:
            self._roster.stop_drafting(admitted, error)

    def _draft(self, scheduled: list[Scheduled]) -> None:
        """Draft for the step. A drafter that raises an error costs speed, not requests."""
        try:
            with self.spans("draft"):
                self.drafting.draft(scheduled)
        except Exception as error:
            for entry in scheduled:
                entry.draft = no_draft()
            self._roster.stop_drafting([entry.request for entry in scheduled], error)

    def _observe(self, observed: list[ObservedRows]) -> None:
        try:
            with self.spans("observe"):
                self.drafting.observe(observed)
        except Exception as error:
            self._roster.stop_drafting([rows.request for rows in observed], error)

    def _settle_all(
        self, scheduled: Sequence[Scheduled], deltas: list[OutputDelta], ended: list[OutputDelta]
    ) -> list[OutputDelta]:
        """Hash the verified blocks of every request of a step that is still there, and close those
        that have ended. Moves the deltas of those that are gone to `ended`, returns the others."""
        by_request = {delta.request_id: delta for delta in deltas}
        held = self._roster.requests
        for entry in scheduled:
            request = entry.request
            if request.id not in held:
                by_request.pop(request.id, None)
                continue
            delta = by_request.get(request.id)
            try:
                self.cache.commit(request, self.drafting.held(request))
                if request.finish_reason is not None:
                    self._roster.close(request, request.finish_reason, request.stop_reason)
                    delta = delta or self._roster.delta(request)
            except Exception as error:
                delta = self._roster.fail(request, error)
            if delta is not None and delta.finish_reason is not None:
                ended.append(delta)
                by_request.pop(request.id, None)
        return list(by_request.values())

    def _report(
        self, scheduled: list[Scheduled], judged: list[JudgedRound], seconds: float, drafting: float
    ) -> list[OutputDelta]:
        """Make the rounds of a step that took `seconds`, and `drafting` beside it, count them, and
        return the delta of each stream that got tokens."""
        cost, rows = self.scheduler.cost, sum([entry.all_rows for entry in scheduled])
        step = StepInfo(time.time(), len(scheduled), rows, drafting, seconds)
        chosen = [len(j.commit.kinds) - j.commit.kinds.count(TokenKind.FORCED) for j in judged]
        scored = any([entry.scored for entry in scheduled])  # those cost more than their rows
        back = looking_back(cost, scheduled)
        known = not scored and rows <= cost.rows[-1] and not any([e.chunk for e in scheduled])
        expected = cost(rows, len(scheduled), back)
        beside = self.drafting.beside(seconds, expected, known=known)
        plain = self.baseline.add(cost, scheduled, chosen, seconds - beside, drafting + beside)
        if not scored:
            cost.observe(rows, seconds - beside, len(scheduled), back)
        self.drafting.lengths.end_step(scheduled, sum(chosen), seconds + drafting)
        deltas = []
        for each, ar_seconds in zip(judged, plain, strict=True):
            entry, commit = each.entry, each.commit
            round = self._rounds.make(entry, commit, each.verdict, step, ar_seconds)
            self._counters.speculation.add(round)
            tokens = explained(entry.draft, commit.token_ids) if entry.request.explain else None
            deltas.append(self._roster.delta(entry.request, commit, round, tokens))
        return deltas

    def _draft_length(self, request: Request) -> int:
        """Most draft tokens that can be committed: a round commits one more than it accepts."""
        return max(0, min(request.max_draft_len, request.max_tokens - request.output_len - 1))
