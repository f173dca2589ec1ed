"""The engine: plan, draft, forward, verify, commit. One step() is one round for everybody."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from paceline.core import (
    FinishReason,
    OutputDelta,
    Request,
    RequestMetrics,
    TokenKind,
    Verdict,
)
from paceline.drafters.base import Drafter, ObservedRows
from paceline.engine.admission import Admission
from paceline.engine.config import EngineConfig, EngineStats
from paceline.engine.drafting import Drafting
from paceline.engine.kv_cache import KVCache
from paceline.engine.memory import MemoryPlan
from paceline.engine.quality import Quality
from paceline.engine.runner import Runner
from paceline.engine.sampler import TargetRows
from paceline.engine.scheduler import Scheduled, Scheduler
from paceline.engine.startup import start_up_table
from paceline.engine.text import TextStream
from paceline.engine.verify import MatchVerifier, make_verifier
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
        self.drafting = Drafting(self.drafters, self.cache, self.verifier.needs_q)
        self._match = MatchVerifier()
        self._texts: dict[str, TextStream] = {}
        self._requests: dict[str, Request] = {}
        self._counters = EngineStats()
        self.make_requests = Admission(
            network.vocab_size,
            max_model_len,
            eos_ids,
            self.drafters,
            default_drafter,
            config.seed,
        ).make_requests
        self.plan: MemoryPlan | None = None
        self.quality: Quality | None = None
        self.backend = ""

    # -- taking requests in -----------------------------------------------------------------------

    def add(self, requests: Iterable[Request]) -> None:
        """Queues requests, without bound: a server bounds its queue before it comes here."""
        for request in requests:
            self._texts[request.id] = TextStream(
                self.tokenizer, request.prompt_ids, request.params.stop
            )
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
        plan = self.scheduler.plan(self._draft_length)
        for request in plan.preempted:
            self._leave(request)
            self._counters.preemptions += 1
        self._begin(plan.admitted)
        if not plan.scheduled:
            return []
        q = self.drafting.draft(plan.scheduled)
        start = time.perf_counter()
        layers = self.drafting.feature_layers(plan.scheduled)
        output = self.runner.forward(plan.scheduled, layers)
        argmax = output.argmax.tolist()
        deltas, observed, row, out = [], [], 0, 0
        for entry in plan.scheduled:
            request, before = entry.request, entry.request.computed
            if entry.samples:
                end = out + 1 + len(entry.draft)
                rows = TargetRows(request, output.logits[out:end], argmax[out:end], entry.draft)
                deltas.append(self._round(entry, rows, q.get(request.id)))
                out = end
            else:
                request.computed += entry.count
            if request.drafter is not None:
                count = request.computed - before
                features = output.features
                features = None if features is None else features[row : row + count]
                observed.append(ObservedRows(request, before, count, features))
            row += entry.rows
        if self.scheduler.cost is not None:
            self.scheduler.cost.observe(row, time.perf_counter() - start)
        self.drafting.observe(observed)
        for entry in plan.scheduled:
            self._settle(entry.request)
        self._counters.steps += 1
        return deltas

    # -- inside -----------------------------------------------------------------------------------

    def _begin(self, admitted: list[Request]) -> None:
        for request in admitted:
            self.runner.begin(request)
            if request.preemptions == 0:
                self._counters.prompt_tokens += request.prompt_len
                self._counters.prefix_queries += request.prompt_len
                self._counters.prefix_hits += request.cached_tokens
        self.drafting.begin(admitted)

    def _round(self, entry: Scheduled, rows: TargetRows, q: list[Any] | None) -> OutputDelta:
        """Verifies one request's draft and commits what stands, up to where the stream ends."""
        request = entry.request
        greedy = request.params.greedy and self.verifier.lossless
        verdict = (self._match if greedy else self.verifier).verify(rows, entry.draft, q)
        tokens = [*entry.draft[: verdict.accepted], verdict.next_token]
        delta = OutputDelta(request_id=request.id, choice=request.choice)
        if request.params.logprobs is not None:
            delta.logprobs = []
        if request.first_token is None:
            request.first_token = time.monotonic()
        reason: FinishReason | None = None
        stop: str | int | None = None
        pieces: list[str] = []
        for index, token in enumerate(tokens):
            if delta.logprobs is not None:
                delta.logprobs.append(rows.logprobs(index, token))
            reason, stop, text = self._append(request, token)
            pieces.append(text)
            if reason is not None:
                break
        committed = request.output_len - rows.position
        # The rows of the anchor and of every draft token that stands are computed and verified; the
        # last committed token has no KV yet. Rejected rows stay behind, to be overwritten.
        request.computed = entry.start + entry.count + committed - 1
        self._record(request, entry, verdict, committed)
        delta.token_ids = tokens[:committed]
        accepted = min(committed, verdict.accepted)
        delta.kinds = [TokenKind.ACCEPTED] * accepted + [TokenKind.BONUS] * (committed - accepted)
        if reason is not None:
            pieces.append(self._texts[request.id].flush())
            request.finish_reason, request.stop_reason = reason, stop
        delta.text = "".join(pieces)
        return self._delta(request, delta)

    def _append(
        self, request: Request, token: int
    ) -> tuple[FinishReason | None, str | int | None, str]:
        """Commits one token; returns why the stream ends here, if it does, and the final text."""
        params = request.params
        request.tokens.append(token)
        past_minimum = request.output_len > params.min_tokens or params.min_tokens == 0
        if token in request.eos_ids and not params.ignore_eos:
            return FinishReason.STOP, None, ""
        if token in params.stop_token_ids:
            return FinishReason.STOP, token, ""
        stream = self._texts[request.id]
        text = stream.push(token, check_stop=past_minimum)
        if stream.stopped_by is not None:
            return FinishReason.STOP, stream.stopped_by, text
        if request.output_len >= request.max_tokens:
            return FinishReason.LENGTH, None, text
        return None, None, text

    def _record(self, request: Request, entry: Scheduled, verdict: Verdict, committed: int) -> None:
        accepted = min(verdict.accepted, committed)
        request.stats.record(len(entry.draft), accepted)
        if request.drafter is not None:
            self.drafting.lengths.observe(entry, request.tokens[-committed:])
        counters = self._counters
        counters.generation_tokens += committed
        if entry.draft:
            counters.spec_drafts += 1
            counters.spec_draft_tokens += len(entry.draft)
            counters.spec_accepted_tokens += accepted
            _count_positions(counters.spec_draft_tokens_per_pos, len(entry.draft))
            _count_positions(counters.spec_accepted_per_pos, accepted)

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
        del self._requests[request.id], self._texts[request.id]
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
            delta.metrics = _times(request)
        return delta

    def _draft_length(self, request: Request) -> int:
        """Most draft tokens that can still be committed: the round commits one more than it
        accepts."""
        return max(0, min(request.max_draft_len, request.max_tokens - request.output_len - 1))


def _count_positions(counts: list[int], length: int) -> None:
    counts.extend([0] * (length - len(counts)))
    for position in range(length):
        counts[position] += 1


def _times(request: Request) -> RequestMetrics:
    end = request.finished or time.monotonic()
    scheduled = request.first_scheduled or end
    first = request.first_token or end
    count = request.output_len
    return RequestMetrics(
        queue=scheduled - request.arrival,
        ttft=first - request.arrival,
        tpot=(end - first) / (count - 1) if count > 1 else None,
        total=end - request.arrival,
    )
