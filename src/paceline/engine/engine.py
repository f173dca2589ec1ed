"""The engine: plan, draft, forward, verify, commit. One step() is one round for everybody."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline.core import (
    DraftPolicy,
    FinishReason,
    OutputDelta,
    Request,
    TokenKind,
)
from paceline.core.spans import OFF, Spans
from paceline.drafters.base import Drafter, ObservedRows
from paceline.engine.admission import Admission
from paceline.engine.baseline import Baseline
from paceline.engine.config import EngineConfig, EngineStats
from paceline.engine.costs import Costs
from paceline.engine.counts import count_admission, count_round, count_step
from paceline.engine.drafting import Drafting
from paceline.engine.grammar import Compiler
from paceline.engine.kv_cache import KVCache
from paceline.engine.lossy import verifier_for
from paceline.engine.masks import Grammars, RowMasks
from paceline.engine.memory import MemoryPlan
from paceline.engine.quality import Quality
from paceline.engine.recovery import Recovery
from paceline.engine.roster import Roster
from paceline.engine.rounds import Explainer, Step
from paceline.engine.runner import Runner
from paceline.engine.sampler import TargetRows, draw_first
from paceline.engine.scheduler import Plan, Scheduled, Scheduler
from paceline.engine.verify import make_verifier
from paceline.models.batch import ForwardOutput, Network


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
        tokenizer: Any,
        eos_ids: frozenset[int],
        plan: MemoryPlan,
        backend: str,
        quality: Quality | None,
        drafters: Mapping[str, Drafter],
        costs: Costs,
    ) -> None:
        """The first of `drafters`, which are attached, is the default. `backend` says which network
        runs, and why; `quality` is what quantising costs, None where nothing is quantised."""
        max_model_len, default_drafter = plan.max_model_len, next(iter(drafters), None)
        self.config, self.model_name = config, model_name
        self.tokenizer, self.eos_ids = tokenizer, eos_ids
        self.vocab_size, self.max_model_len = network.vocab_size, max_model_len
        self.drafters, self.default_drafter = dict(drafters), default_drafter
        self.cache = KVCache(plan.num_blocks, config.prefix_cache)
        self.scheduler = Scheduler(
            self.cache,
            max_num_seqs=config.max_num_seqs,
            token_budget=config.token_budget,
            max_stretch=config.max_stretch,
        )
        self.runner = Runner(network, max_num_seqs=config.max_num_seqs, max_model_len=max_model_len)
        self.verifier = make_verifier(config.rule, config.synthetic)
        self.explainer = Explainer(self.drafters, config.rule)
        self.grammars = Grammars(Compiler(tokenizer, network.vocab_size, eos_ids))
        self.drafting = Drafting(
            self.drafters, self.cache, self.grammars, needs_q=self.verifier.needs_q
        )
        self._counters = EngineStats()
        self._roster = Roster(
            tokenizer,
            self.cache,
            self.scheduler,
            self.runner,
            self.grammars,
            self.drafting,
            self._counters,
        )
        self._recovery = Recovery(
            model_name, network, max_model_len, self.cache, self.scheduler, self._roster
        )
        self.baseline = Baseline()
        self.make_requests = Admission(
            network.vocab_size,
            max_model_len,
            eos_ids,
            self.drafters,
            default_drafter,
            config.seed,
            DraftPolicy.parse(config.draft_policy),
            config.holdback,
            rule=config.rule,
            compiled=self.grammars.compiler.compiled,
        ).make_requests
        self.plan, self.quality, self.backend = plan, quality, backend
        self.spans: Spans = OFF
        self.use_costs(costs)

    def record(self, spans: Spans) -> None:
        """Every step from now on tells `spans` where its time goes; OFF ends that. The text of a
        request is watched if it is added later."""
        self.spans = spans
        self.runner.record(spans)
        self.drafting.record(spans)

    def use_costs(self, costs: Costs) -> None:
        """Chunks of prompts and draft lengths follow these costs, which the steps refine."""
        self.scheduler.cost = costs.step
        self.drafting.use(costs)

    # -- taking requests in -----------------------------------------------------------------------

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
        return self._roster.fill(request)

    @property
    def has_work(self) -> bool:
        return bool(self._roster.requests)

    def stats(self) -> EngineStats:
        """Counters since start, gauges of now."""
        stats = self._counters
        stats.running, stats.waiting = len(self.scheduler.running), len(self.scheduler.waiting)
        stats.kv_usage = self.cache.usage
        stats.kv_blocks_total, stats.kv_blocks_free = self.cache.num_blocks, self.cache.free_blocks
        stats.decode_seconds, stats.ar_seconds = self.baseline.seconds, self.baseline.ar_seconds
        stats.speedup_vs_ar = self.baseline.speedup
        return stats

    def check_integrity(self) -> None:
        """Raises AssertionError when a block of KV is leaked, shared wrongly or freed twice."""
        self.cache.check_integrity(self.scheduler.running)

    # -- one round --------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[OutputDelta]:
        """Run one round and return what it added to each stream that got something.

        An error in a step ends the requests that it may have harmed with finish reason `error`; the
        others go on. Raises EngineFailed when the engine cannot go on.
        """
        progress = _Progress()
        try:
            with self.spans("step"):
                deltas = self._step(progress)
        except Exception as error:
            deltas = progress.ended + self._recovery.recover(progress.plan, error)
        if self._roster.target_in_doubt:
            self._recovery.try_out_target()
        return deltas

    def fail(self, request_ids: Iterable[str], error: Exception) -> list[OutputDelta]:
        """End requests on an error outside a step; those that are gone are left out."""
        held = self._roster.requests
        requests = [held[name] for name in request_ids if name in held]
        return [self._roster.fail(request, error) for request in requests]

    # -- the stages of a step ---------------------------------------------------------------------

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
        q = self._draft(plan.scheduled)
        start = time.perf_counter()
        building = self.grammars.build(plan.scheduled)
        layers = self.drafting.feature_layers(plan.scheduled)
        output = self.runner.forward(plan.scheduled, layers)
        with self.spans("grammar"):
            masks = {} if building is None else building.result()
        rounds, deltas, observed = self._judge(plan, output, masks, q, progress.ended)
        seconds, rows = time.perf_counter() - start, sum(entry.rows for entry in plan.scheduled)
        self._observe(observed)
        cost, drafting = self.scheduler.cost, self.drafting.seconds - drafting
        self.explainer.explain(rounds, deltas, Step(len(plan.scheduled), rows, drafting, seconds))
        if cost is not None:
            self.baseline.add(cost, plan.scheduled, deltas, seconds, drafting)
            cost.observe(rows, seconds, len(plan.scheduled))
        with self.spans("settle"):
            going_on = self._settle_all(plan.scheduled, deltas, progress.ended)
        self._counters.steps += 1
        self.spans.count(count_step, plan.scheduled, rounds, deltas)
        return progress.ended + going_on

    def _begin(self, admitted: list[Request]) -> None:
        for request in admitted:
            self.runner.begin(request)
            if request.preemptions == 0:
                count_admission(self._counters, request)
        try:
            self.drafting.begin(admitted)
        except Exception as error:
            self._roster.stop_drafting(admitted, error)

    def _draft(self, scheduled: list[Scheduled]) -> dict[str, list[Any]]:
        """Drafts for the step and the q rows of sampled ones. A drafter that raises an error costs
        speed, not requests: those of the step go on without drafts."""
        try:
            with self.spans("draft"):
                return self.drafting.draft(scheduled)
        except Exception as error:
            for entry in scheduled:
                entry.drop_draft()
            self._roster.stop_drafting([entry.request for entry in scheduled], error)
            return {}

    def _judge(
        self,
        plan: Plan,
        output: ForwardOutput,
        masks: Mapping[str, RowMasks | Exception],
        q: Mapping[str, list[Any]],
        ended: list[OutputDelta],
    ) -> tuple[list[Scheduled], list[OutputDelta], list[ObservedRows]]:
        """Verify and commit every round. Returns the entries that got tokens, their deltas, and
        the rows that drafters see. An error in one request ends that request, in `ended`."""
        with self.spans("sample"):
            argmax, finite = output.argmax.tolist(), output.finite.tolist()
            # The rules that judge by q do not ask for the target's own token.
            first = {} if self.verifier.needs_q else draw_first(plan.first_rows(), output.logits)
        rounds, deltas, observed, row, out = [], [], [], 0, 0
        for entry in plan.scheduled:
            request, before, end = entry.request, entry.request.computed, out + entry.outputs
            try:
                if entry.samples:
                    mask = masks.get(request.id)
                    if isinstance(mask, Exception):
                        raise mask
                    rows = TargetRows(
                        request,
                        output.logits[out:end],
                        argmax[out:end],
                        finite[out:end],
                        entry.draft,
                        edits=self._roster.edits.get(request.id),
                        masks=mask,
                        forced=entry.forced,
                        first=first.get(out),
                        spans=self.spans,
                    )
                    deltas.append(self._round(entry, rows, q.get(request.id)))
                    rounds.append(entry)
                else:
                    request.computed += entry.count
                if self.drafting.watches(request):
                    count, features = request.computed - before, output.features
                    features = None if features is None else features[row : row + count]
                    observed.append(ObservedRows(request, before, count, features))
            except Exception as error:
                ended.append(self._roster.fail(request, error))
            row, out = row + entry.rows, end
        return rounds, deltas, observed

    def _observe(self, observed: list[ObservedRows]) -> None:
        try:
            with self.spans("observe"):
                self.drafting.observe(observed)
        except Exception as error:
            self._roster.stop_drafting([rows.request for rows in observed], error)

    def _settle_all(
        self, scheduled: Sequence[Scheduled], deltas: list[OutputDelta], ended: list[OutputDelta]
    ) -> list[OutputDelta]:
        """Settle every request of a step that is still there. Moves the deltas of those that are
        gone afterwards to `ended`, and returns the others."""
        by_request = {delta.request_id: delta for delta in deltas}
        for entry in scheduled:
            request = entry.request
            if request.id not in self._roster.requests:
                by_request.pop(request.id, None)
                continue
            delta = by_request.get(request.id)
            try:
                self._settle(request)
            except Exception as error:
                delta = self._roster.fail(request, error)
            if delta is not None and delta.finished:
                ended.append(delta)
                by_request.pop(request.id, None)
        return list(by_request.values())

    def _round(self, entry: Scheduled, rows: TargetRows, q: list[Any] | None) -> OutputDelta:
        """Verifies one request's draft and commits what stands, up to where the stream ends, and
        what the grammar leaves no choice about after that."""
        request = entry.request
        with self.spans("verify"):
            verdict = verifier_for(request, self.verifier).verify(rows, entry.draft, q)
        tokens = [*entry.draft[: verdict.accepted], verdict.next_token]
        delta = OutputDelta(request_id=request.id, choice=request.choice)
        if request.first_token is None:
            request.first_token = time.monotonic()
        kinds = [
            TokenKind.FORCED if index in entry.forced else TokenKind.ACCEPTED
            for index in range(verdict.accepted)
        ]
        kinds.append(TokenKind.FORCED if rows.only(verdict.accepted) else TokenKind.BONUS)
        output = self._roster.outputs[request.id]
        with self.spans("commit"):
            output.commit(delta, tokens, kinds, rows.logprobs)
        committed = len(delta.token_ids)
        # The rows of the anchor and of every draft token that stands are computed and verified; the
        # last committed token has no KV yet. Rejected rows stay behind, to be overwritten.
        request.computed = entry.start + entry.count + committed - 1
        with self.spans("commit"):
            request.forced_tail = output.force(delta, rows.logprobs)
        request.stats.distance += verdict.distance
        request.stats.replaced_tokens += verdict.replaced
        if request.drafter is not None:
            self.drafting.lengths.observe(entry, delta.token_ids[:committed])
        count_round(self._counters, entry, delta)
        return self._roster.fill(request, delta)

    def _settle(self, request: Request) -> None:
        """Hash the blocks that were verified, and free those of a request that has ended."""
        self.cache.commit(request, self.drafting.held(request))
        if request.finish_reason is not None:
            self._roster.close(request, request.finish_reason, request.stop_reason)

    def _draft_length(self, request: Request) -> int:
        """Most draft tokens that can still be committed: the round commits one more than it
        accepts."""
        return max(0, min(request.max_draft_len, request.max_tokens - request.output_len - 1))
