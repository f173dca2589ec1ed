"""The requests that an engine holds, what comes and goes with a request, and what a failed step
leaves of all that."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from paceline.core import (
    ExplainedRound,
    FinishReason,
    OutputDelta,
    PacelineError,
    Request,
    RequestMetrics,
    Round,
    TokenLogprobs,
)
from paceline.core.spans import Spans
from paceline.engine.config import EngineStats
from paceline.engine.drafting import Drafting
from paceline.engine.kv_cache import KVCache
from paceline.engine.masks import Grammars
from paceline.engine.output import Commit, Output
from paceline.engine.rounds import RoundMaker
from paceline.engine.row_edits import RowEdits, edits_of
from paceline.engine.runner import Runner, try_out
from paceline.engine.sampler import NotFinite
from paceline.engine.scheduler import Plan, Scheduler
from paceline.engine.text import TextStream
from paceline.models.tokenizer import Pieces, Tokenizer

log = logging.getLogger(__name__)
NOT_FINITE = "model_not_finite"  # stop reason of a stream whose logits held NaN or infinity


class EngineFailed(PacelineError):
    """A step failed and the engine could not be brought back to order: it cannot go on."""


@dataclass(slots=True)
class Roster:
    """Opens and closes requests in every part of the engine. Belongs to the engine's thread.

    `requests`, `outputs` and `edits` are by request id. `target_in_doubt` says that a request met
    logits that are not finite since that was last looked into.
    """

    tokenizer: Tokenizer
    cache: KVCache
    scheduler: Scheduler
    runner: Runner
    grammars: Grammars
    drafting: Drafting
    rounds: RoundMaker
    counters: EngineStats
    requests: dict[str, Request] = field(default_factory=dict)
    outputs: dict[str, Output] = field(default_factory=dict)
    edits: dict[str, RowEdits] = field(default_factory=dict)
    target_in_doubt: bool = False
    pieces: Pieces = field(init=False)

    def __post_init__(self) -> None:
        self.pieces = Pieces(self.tokenizer)

    def open(self, request: Request, spans: Spans) -> OutputDelta | None:
        """Queue a request. Returns its last delta if it failed at once."""
        self.requests[request.id], params = request, request.params
        try:
            text = TextStream(
                self.tokenizer,
                request.prompt_ids,
                params.stop,
                skip_special_tokens=params.skip_special_tokens,
                pieces=self.pieces,
            )
            grammar = self.grammars.open(request)
            self.outputs[request.id] = Output(request, text, grammar, spans)
            edits = edits_of(request, self.runner.network.device)
            if edits is not None:
                self.edits[request.id] = edits
            self.scheduler.add(request)
        except Exception as error:
            return self.fail(request, error)
        return None

    def close(
        self, request: Request, reason: FinishReason, stop_reason: str | int | None = None
    ) -> None:
        """End a request and free all that it holds, whether it runs, waits or neither."""
        request.finish_reason, request.stop_reason = reason, stop_reason
        request.finished = time.monotonic()
        self.scheduler.remove(request)
        self.leave(request)
        for table in (self.requests, self.outputs, self.edits):
            table.pop(request.id, None)
        self.grammars.close(request)
        self.drafting.lengths.forget(request.id)
        self.rounds.forget(request.id)
        finished = self.counters.requests_finished
        finished[reason] = finished.get(reason, 0) + 1

    def leave(self, request: Request) -> None:
        """Free what only a running request holds. Harmless for one that does not run."""
        self.runner.end(request)
        try:
            self.drafting.release(request)
        except Exception as error:
            self.stop_drafting([request], error)

    def fail(self, request: Request, error: Exception) -> OutputDelta:
        """End a request on an error. Returns its last delta."""
        log.error("request %s failed", request.id, exc_info=error)
        stop_reason = None
        if isinstance(error, NotFinite):
            stop_reason, self.target_in_doubt = NOT_FINITE, True
            self.cache.forget_prefix(request)
        self.close(request, FinishReason.ERROR, stop_reason)
        shown = str(error) if isinstance(error, PacelineError) else repr(error)
        return self.delta(request, Commit(error=shown))

    def stop_drafting(self, requests: Collection[Request], error: Exception) -> None:
        """Let requests go on without drafts after an error of their drafter."""
        log.error("a drafter failed: its requests go on without drafts", exc_info=error)
        self.counters.drafter_failures += 1
        for request in requests:
            if request.drafter is not None:
                self.drafting.give_up(request)

    def delta(
        self,
        request: Request,
        commit: Commit | None = None,
        round: Round | None = None,
        explained: ExplainedRound | None = None,
    ) -> OutputDelta:
        """Make the delta of a stream: what a step added, or without a commit that it ended."""
        commit = commit or Commit()
        ended = request.finish_reason is not None
        return OutputDelta(  # by position, which takes half of what names take
            request.id,
            request.choice,
            tuple(commit.token_ids),
            tuple(commit.kinds),
            commit.text,
            None if commit.logprobs is None else tuple(commit.logprobs),
            None if request.prompt_logprobs is None else _prompt_logprobs(request),
            request.finish_reason,
            request.stop_reason,
            commit.error,
            len(request.prompt_ids),
            request.cached_tokens,
            len(request.tokens) - len(request.prompt_ids),
            request.seed,
            round,
            explained,
            _times(request) if ended else None,
        )


def _prompt_logprobs(request: Request) -> tuple[TokenLogprobs, ...] | None:
    """Hand out the log-probabilities of the prompt, once, when all are known."""
    known = request.prompt_logprobs
    if known is None or request.unscored:
        return None
    request.prompt_logprobs = None
    return tuple(known)


def _times(request: Request) -> RequestMetrics:
    end, count = request.finished or time.monotonic(), request.output_len
    first = request.first_token
    return RequestMetrics(
        queue=(request.first_scheduled or end) - request.arrival,
        ttft=None if first is None else first - request.arrival,
        tpot=None if first is None or count < 2 else (end - first) / (count - 1),
        total=end - request.arrival,
        held_back=request.held_back,
    )


def recover(roster: Roster, plan: Plan | None, error: Exception) -> list[OutputDelta]:
    """End the requests that a step which raised `error` may have harmed, repair what it left half
    done, and return their last deltas. `plan` is None where the step was not planned yet.

    Raises EngineFailed when that fails.
    """
    log.error("a step failed: its requests end", exc_info=error)
    scheduler, cache = roster.scheduler, roster.cache
    roster.counters.failed_steps += 1
    try:
        deltas = [roster.fail(request, error) for request in _harmed(roster, plan)]
        queued = {request.id for request in (*scheduler.running, *scheduler.waiting)}
        for request in list(roster.requests.values()):
            if request.id not in queued:  # the error came between two queues
                scheduler.requeue(request)
        for request in scheduler.waiting:
            roster.leave(request)
        try:
            cache.check_integrity(scheduler.running)
        except AssertionError as wrong:
            log.error("the bookkeeping of KV blocks is made anew: %s", wrong)
            cache.repair(scheduler.running)
    except Exception as failure:
        raise EngineFailed(f"the engine cannot go on after {error!r}: {failure}") from failure
    roster.target_in_doubt = True
    return deltas


def try_out_target(roster: Roster, name: str, longest: int) -> None:
    """Raises EngineFailed where the target gives no usable logits any more."""
    roster.target_in_doubt = False
    block = roster.cache.unused_block()
    if block is None:
        return
    try:
        try_out(roster.runner.network, name, longest=longest, block=block)
    except Exception as error:
        raise EngineFailed(f"the engine cannot go on: {error}") from error


def _harmed(roster: Roster, plan: Plan | None) -> list[Request]:
    """The requests of the failed step, or all that run where it was not planned yet: at least one
    where there is any, so that the same error cannot come back for ever."""
    if plan is not None and plan.scheduled:
        return [e.request for e in plan.scheduled if e.request.id in roster.requests]
    return list(roster.scheduler.running) or list(roster.scheduler.waiting)[:1]
