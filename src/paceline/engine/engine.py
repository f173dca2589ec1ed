"""The engine: plan, draft, forward, verify, commit. One step() is one round for everybody."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
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
from paceline.drafters.shipped import Shipped
from paceline.engine.admission import Admission
from paceline.engine.baseline import Baseline
from paceline.engine.config import EngineConfig, EngineStats
from paceline.engine.costs import Costs
from paceline.engine.counts import count_admission, count_round, count_step, times
from paceline.engine.drafting import Drafting
from paceline.engine.grammar import Compiler
from paceline.engine.kv_cache import KVCache
from paceline.engine.lossy import verifier_for
from paceline.engine.masks import Grammars
from paceline.engine.memory import MemoryPlan
from paceline.engine.output import Output
from paceline.engine.quality import Quality
from paceline.engine.rounds import Explainer, Step
from paceline.engine.runner import Runner
from paceline.engine.sampler import TargetRows, draw_first
from paceline.engine.scheduler import Scheduled, Scheduler
from paceline.engine.startup import start_up_table
from paceline.engine.text import TextStream
from paceline.engine.verify import make_verifier
from paceline.models.batch import Network


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
        num_blocks: int,
        max_model_len: int,
        drafters: Mapping[str, Drafter],
        default_drafter: str | None,
    ) -> None:
        self.config, self.model_name = config, model_name
        self.tokenizer, self.eos_ids = tokenizer, eos_ids
        self.vocab_size, self.max_model_len = network.vocab_size, max_model_len
        self.drafters, self.default_drafter = dict(drafters), default_drafter
        self.cache = KVCache(num_blocks, config.prefix_cache)
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
        self._outputs: dict[str, Output] = {}
        self._requests: dict[str, Request] = {}
        self._counters = EngineStats()
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
            check_grammar=self.grammars.compiler.compile,
        ).make_requests
        self.plan: MemoryPlan | None = None
        self.quality: Quality | None = None
        self.shipped: Shipped | None = None  # for this target, if it was asked for
        self.backend = ""
        self.spans: Spans = OFF

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

    def add(self, requests: Iterable[Request]) -> None:
        """Queues requests, without bound: a server bounds its queue before it comes here."""
        for request in requests:
            params = request.params
            text = TextStream(
                self.tokenizer,
                request.prompt_ids,
                params.stop,
                skip_special_tokens=params.skip_special_tokens,
            )
            grammar = self.grammars.open(request)
            self._outputs[request.id] = Output(request, text, grammar, self.spans)
            self._requests[request.id] = request
            self.scheduler.add(request)

    def abort(self, request_id: str) -> OutputDelta | None:
        """Ends a stream at once and frees its memory; None when it is not there (any more)."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        self._finish(request, FinishReason.ABORT, None)
        return self._delta(request)

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def stats(self) -> EngineStats:
        """Counters since start, gauges of now."""
        stats = self._counters
        stats.running, stats.waiting = len(self.scheduler.running), len(self.scheduler.waiting)
        stats.kv_usage = self.cache.usage
        stats.kv_blocks_total, stats.kv_blocks_free = self.cache.num_blocks, self.cache.free_blocks
        stats.decode_seconds, stats.ar_seconds = self.baseline.seconds, self.baseline.ar_seconds
        stats.speedup_vs_ar = self.baseline.speedup
        return stats

    def start_up_table(self) -> list[tuple[str, str]]:
        """Rows of (label, value) to print once: model, memory plan, bandwidth bound, drafters."""
        return start_up_table(self)

    def check_integrity(self) -> None:
        """Raises AssertionError when a block of KV is leaked, shared wrongly or freed twice."""
        self.cache.check_integrity(self.scheduler.running)

    # -- one round --------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[OutputDelta]:
        """Runs one round and returns what it added to each stream that got something."""
        with self.spans("step"):
            return self._step()

    def _step(self) -> list[OutputDelta]:
        with self.spans("schedule"):
            plan = self.scheduler.plan(self._draft_length)
            for request in plan.preempted:
                self._leave(request)
                self._counters.preemptions += 1
            self._begin(plan.admitted)
        if not plan.scheduled:
            return []
        drafting = self.drafting.seconds
        with self.spans("draft"):
            q = self.drafting.draft(plan.scheduled)
        start = time.perf_counter()
        building = self.grammars.build(plan.scheduled)
        layers = self.drafting.feature_layers(plan.scheduled)
        output = self.runner.forward(plan.scheduled, layers)
        with self.spans("grammar"):
            masks = {} if building is None else building.result()
        with self.spans("sample"):
            argmax = output.argmax.tolist()
            # The rules that judge by q do not ask for the target's own token.
            first = {} if self.verifier.needs_q else draw_first(plan.first_rows(), output.logits)
        deltas, rounds, observed, row, out = [], [], [], 0, 0
        for entry in plan.scheduled:
            request, before = entry.request, entry.request.computed
            if entry.samples:
                rounds.append(entry)
                end = out + 1 + len(entry.draft)
                rows = TargetRows(
                    request,
                    output.logits[out:end],
                    argmax[out:end],
                    entry.draft,
                    masks.get(request.id),
                    entry.forced,
                    first.get(out),
                    self.spans,
                )
                deltas.append(self._round(entry, rows, q.get(request.id)))
                out = end
            else:
                request.computed += entry.count
            if self.drafting.watches(request):
                count = request.computed - before
                features = output.features
                features = None if features is None else features[row : row + count]
                observed.append(ObservedRows(request, before, count, features))
            row += entry.rows
        seconds = time.perf_counter() - start
        with self.spans("observe"):
            self.drafting.observe(observed)
        cost, drafting = self.scheduler.cost, self.drafting.seconds - drafting
        self.explainer.explain(rounds, deltas, Step(len(plan.scheduled), row, drafting, seconds))
        if cost is not None:
            self.baseline.add(cost, plan.scheduled, deltas, seconds, drafting)
            cost.observe(row, seconds, len(plan.scheduled))
        with self.spans("settle"):
            for entry in plan.scheduled:
                self._settle(entry.request)
        self._counters.steps += 1
        self.spans.count(count_step, plan.scheduled, rounds, deltas)
        return deltas

    # -- inside -----------------------------------------------------------------------------------

    def _begin(self, admitted: list[Request]) -> None:
        for request in admitted:
            self.runner.begin(request)
            if request.preemptions == 0:
                count_admission(self._counters, request)
        self.drafting.begin(admitted)

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
        output = self._outputs[request.id]
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
        return self._delta(request, delta)

    def _settle(self, request: Request) -> None:
        """After a round: hash what was verified; let go of what has ended."""
        self.cache.commit(request, self.drafting.held(request))
        if request.finish_reason is not None:
            self._finish(request, request.finish_reason, request.stop_reason)

    def _finish(
        self, request: Request, reason: FinishReason, stop_reason: str | int | None
    ) -> None:
        request.finish_reason, request.stop_reason = reason, stop_reason
        request.finished = time.monotonic()
        if self.scheduler.remove(request):
            self._leave(request)
        del self._requests[request.id], self._outputs[request.id]
        self.grammars.close(request)
        self.drafting.lengths.forget(request.id)
        finished = self._counters.requests_finished
        finished[reason] = finished.get(reason, 0) + 1

    def _leave(self, request: Request) -> None:
        """A request stops running: finished, aborted or preempted."""
        self.runner.end(request)
        self.drafting.release(request)

    def _delta(self, request: Request, delta: OutputDelta | None = None) -> OutputDelta:
        """Fills in what every delta carries."""
        if delta is None:
            delta = OutputDelta(request_id=request.id, choice=request.choice)
        delta.finish_reason, delta.stop_reason = request.finish_reason, request.stop_reason
        delta.prompt_tokens, delta.cached_tokens = request.prompt_len, request.cached_tokens
        delta.completion_tokens, delta.seed = request.output_len, request.seed
        delta.stats = request.stats
        if delta.finished:
            delta.metrics = times(request)
        return delta

    def _draft_length(self, request: Request) -> int:
        """Most draft tokens that can still be committed: the round commits one more than it
        accepts."""
        return max(0, min(request.max_draft_len, request.max_tokens - request.output_len - 1))
