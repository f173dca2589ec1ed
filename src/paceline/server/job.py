"""One HTTP request on its way through the engine, streamed or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from starlette.types import Receive

from paceline.core import (
    FinishReason,
    Grammar,
    OutputDelta,
    RequestMetrics,
    Round,
    SpeculationStats,
    TokenKind,
    TokenLogprobs,
)
from paceline.engine.output import GRAMMAR_FAILED
from paceline.engine.roster import NOT_FINITE
from paceline.engine.stream import Stream
from paceline.server.capture import Capture, Ended
from paceline.server.cohorts import Caller
from paceline.server.errors import ENGINE_FAILED, ApiError, shutting_down
from paceline.server.metrics import ServerMetrics
from paceline.server.responses import Metrics, PartDecoding, SpeculativeDecoding, Usage
from paceline.server.rounds import RoundLog
from paceline.server.tally import ANSWERED, StreamGroup, Traffic

TOO_COMPLEX = "the grammar became too complex while this output was being made; simplify it"
Indexed = tuple[int, OutputDelta]


@dataclass(slots=True)
class StreamRecord:
    """The output of one stream so far.

    `stats` count its rounds; `rounds` are kept where the answer tells each of them, and with them
    the places of the output at which a grammar left no choice. Text, tokens and log-probabilities
    are kept for answers that are not streamed.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: Sequence[TokenLogprobs] | None = None
    last: OutputDelta | None = None
    seen: float = 0.0  # when the last tokens came
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    rounds: list[Round] = field(default_factory=list)
    forced_places: list[int] = field(default_factory=list)

    def keep_round(self, round: Round, kinds: Sequence[TokenKind]) -> None:
        """Keep a round, and at which places it committed tokens that a grammar forced."""
        self.rounds.append(round)
        if round.forced:
            places = enumerate(kinds, round.position)
            self.forced_places += [place for place, kind in places if kind is TokenKind.FORCED]

    def take(self, delta: OutputDelta) -> None:
        """Keep what a delta says."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *delta.logprobs]
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs

    @property
    def answered(self) -> bool:
        """Return whether the stream has ended by itself: not aborted, not failed."""
        return self.last is not None and self.last.finish_reason in ANSWERED


class Job:
    """The streams of one request: `n` choices for each of its prompts, choice i of prompt p at
    index p * n + i. `tells_cached`: whether the usage says how much of the prompt was cached.
    """

    def __init__(
        self,
        id: str,
        model: str,
        caller: Caller,
        streams: list[Stream],
        metrics: ServerMetrics,
        traffic: Traffic,
        *,
        spec_metrics: str,
        tells_cached: bool,
        capture: Capture | None = None,
    ) -> None:
        self.id, self.model, self.caller, self.streams = id, model, caller, streams
        self.created = int(time.time())
        requests = [request for stream in streams for request in stream.requests]
        self.prompts = [stream.requests[0].prompt_ids for stream in streams]
        self.n = len(streams[0].requests)
        self.choices = [StreamRecord() for _ in requests]
        self.log: RoundLog | None = None  # for requests that want to be explained
        self.gone = False  # the client has hung up
        # Some of the streams may have been held back from drafting. None: no stream drafts
        drafting = next((request for request in requests if request.drafter is not None), None)
        self.drafter = drafting.drafter if drafting else None
        self.drafter_version = drafting.drafter_version if drafting else None
        self.route = drafting.route if drafting else None
        self.draft_bound = drafting.max_draft_len if drafting else None
        self.params, self._lossy = requests[0].params, requests[0].speculative.lossy
        self._metrics, self._traffic = metrics, traffic
        self._groups = [StreamGroup.of(request) for request in requests]
        self._spec_metrics, self._tells_cached = spec_metrics, tells_cached
        self._keeps_rounds = spec_metrics == "detailed" or capture is not None
        self._capture = capture
        self._uncaptured = dict(enumerate(requests)) if capture is not None else {}

    def abort(self) -> None:
        """End what still runs. Nothing is kept of a request that has not been answered."""
        for stream in self.streams:
            stream.abort()
        if self.log is not None and not all(choice.answered for choice in self.choices):
            self.log.discard()

    async def deltas(self) -> AsyncIterator[list[Indexed]]:
        """Yield what each step adds, until every choice has ended.

        Raises ApiError when the engine failed or a drain cut a stream short.
        """
        try:
            if len(self.streams) == 1:
                async for deltas in self.streams[0]:
                    yield self.noted(deltas)
            else:
                async for prompt, deltas in _merged(self.streams):
                    yield self.noted(deltas, prompt * self.n)
        finally:
            self.abort()
            for index in list(self._uncaptured):  # nobody reads on
                self._capture_choice(index)

    def write_directly(
        self,
        write: Callable[[list[Indexed]], None],
        is_ready: Callable[[], bool],
        *,
        off_loop: bool,
    ) -> None:
        """Give what a step adds to `write` at once, where it `is_ready`: `off_loop` on the engine's
        thread. deltas() yields the rest, in order. A job of several prompts has deltas() alone."""
        if len(self.streams) == 1:
            self.streams[0].read_directly(_DirectWriting(self, write, is_ready, off_loop))

    def noted(self, deltas: Iterable[OutputDelta], first: int = 0) -> list[Indexed]:
        """Count deltas of choices that begin at `first`, and return them by their choice."""
        return [(self._note(first + delta.choice, delta), delta) for delta in deltas]

    async def abort_when_gone(self, receive: Receive) -> None:
        """Wait for the client to hang up, then free what still runs. Cancel it at the end."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self.abort()

    async def finish(self, receive: Receive) -> None:
        """Run to the end, keeping everything in `choices`."""
        watch = asyncio.create_task(self.abort_when_gone(receive))
        try:
            async for indexed in self.deltas():
                for index, delta in indexed:
                    self.choices[index].take(delta)
        finally:
            watch.cancel()

    @property
    def lasts(self) -> list[OutputDelta]:
        """Return the latest delta of each choice that has one."""
        return [choice.last for choice in self.choices if choice.last is not None]

    @property
    def finish_reasons(self) -> list[str]:
        """Return why choices ended, one reason for each that has."""
        return [d.finish_reason.value for d in self.lasts if d.finish_reason is not None]

    @property
    def stats(self) -> SpeculationStats:
        """Return the counts of the rounds of all choices."""
        return sum((choice.stats for choice in self.choices), SpeculationStats())

    @property
    def times(self) -> RequestMetrics | None:
        """Return the latencies of a single choice that has ended; None for several."""
        return self.lasts[0].metrics if len(self.choices) == 1 and self.lasts else None

    @property
    def tells_logprobs(self) -> bool:
        """Return whether the answer has the log-probabilities of tokens."""
        return self.params.logprobs is not None or self.params.prompt_logprobs is not None

    def usage(self) -> Usage:
        firsts = [c.last for c in self.choices[:: self.n] if c.last is not None]
        completion = sum(delta.completion_tokens for delta in self.lasts)
        cached = sum(delta.cached_tokens for delta in firsts)
        return self.count_usage(sum(map(len, self.prompts)), completion, cached)

    def count_usage(self, prompt: int, completion: int, cached: int) -> Usage:
        """Return OpenAI's `usage` object, in tokens. What was cached may come from other requests,
        so it is told only where the request says whom it shares with."""
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached} if self._tells_cached else None,
        }

    def measured(self) -> Metrics:
        """Return the `metrics` object."""
        seeds = [last.seed for last in self.lasts[:: self.n]]  # the choices of a prompt share one
        stats, times = self.stats, self.times
        shown: Metrics = {
            "seed": seeds[0] if len(set(seeds)) == 1 else seeds,
            "drafter": self.drafter,
            "drafter_version": self.drafter_version,
            "route": self.route,
            "speculative_decoding": self._speculation(stats),
        }
        if times is not None:
            shown["queue_time"], shown["ttft"] = times.queue, times.ttft
            shown["tpot"], shown["e2e_latency"] = times.tpot, times.total
        if self._lossy:
            shown["lossy"] = {
                "epsilon": self._lossy,
                "total_variation": stats.distance,
                "replaced_tokens": stats.replaced_tokens,
            }
        if self.params.grammar is not None:
            shown["forced_tokens"] = stats.forced_tokens
        if len(self.choices) == 1 and self.drafter is not None:
            shown["speedup_vs_ar"] = stats.speedup_vs_ar
        return shown

    def _note(self, index: int, delta: OutputDelta) -> int:
        choice, now = self.choices[index], time.monotonic()
        if choice.seen:
            self._metrics.between_tokens(now - choice.seen)
        choice.seen, choice.last = now, delta
        self._traffic.note(self._groups[index], delta)
        if delta.round is not None:
            choice.stats.add(delta.round)
            if self._keeps_rounds:
                choice.keep_round(delta.round, delta.kinds)
        if self.log is not None:
            self.log.note(index, delta)
        if delta.finished:
            self._metrics.finished(delta)
            self._capture_choice(index)
            if delta.finish_reason is FinishReason.ERROR:
                raise _failure(delta, self.params.grammar)
            if delta.finish_reason is FinishReason.ABORT and not self.gone:
                raise shutting_down()
        return index

    def _capture_choice(self, index: int) -> None:
        """Hand a choice over to the traces, where there are any, at its end."""
        request = self._uncaptured.pop(index, None)
        if self._capture is None or request is None:
            return
        choice, session = self.choices[index], self.caller.session or self.id
        rounds, stats = tuple(choice.rounds), choice.stats.copy()
        forced, now = tuple(choice.forced_places), time.time()
        self._capture.take(
            Ended(request, self.caller, session, rounds, stats, choice.last, now, forced)
        )

    def _speculation(self, stats: SpeculationStats) -> SpeculativeDecoding | None:
        """Summed over all streams. The counts of each round are those of one stream."""
        if self.draft_bound is None or self._spec_metrics == "none":
            return None
        histogram = stats.rounds_by_accepted
        shown: SpeculativeDecoding = {
            "mean_acceptance_length": stats.acceptance_length,
            "draft_acceptance_rate": stats.acceptance_rate,
            "acceptance_histogram": histogram + [0] * (self.draft_bound + 1 - len(histogram)),
            "num_spec_steps": stats.draft_rounds,
            "num_accepted_draft_tokens": stats.accepted_tokens,
            "num_draft_tokens": stats.draft_tokens,
            "num_spec_tokens": self.draft_bound,
        }
        if stats.parts:
            shown["parts"] = {name: _counts(part) for name, part in stats.parts.items()}
        if self._spec_metrics == "detailed" and len(self.choices) == 1:
            drafted = [round for round in self.choices[0].rounds if round.drafted]
            shown["per_step_accepted"] = [round.accepted for round in drafted]
            shown["per_step_drafted"] = [round.drafted for round in drafted]
        return shown


@dataclass(frozen=True, slots=True)
class _DirectWriting:
    """Writes the deltas of a job's stream as they come."""

    job: Job
    write: Callable[[list[Indexed]], None]
    is_ready: Callable[[], bool]
    off_loop: bool

    def take(self, deltas: list[OutputDelta]) -> None:
        self.write(self.job.noted(deltas))


def _counts(stats: SpeculationStats) -> PartDecoding:
    return {
        "num_spec_steps": stats.draft_rounds,
        "num_accepted_draft_tokens": stats.accepted_tokens,
        "num_draft_tokens": stats.draft_tokens,
    }


def _failure(delta: OutputDelta, grammar: Grammar | None) -> ApiError:
    if delta.stop_reason == GRAMMAR_FAILED and grammar is not None:
        message = f"{grammar.field}: {TOO_COMPLEX}"
        return ApiError(400, message, param=grammar.field, code=GRAMMAR_FAILED)
    if delta.stop_reason == NOT_FINITE:
        return ApiError(500, delta.error or ENGINE_FAILED, code=NOT_FINITE)
    return ApiError(500, ENGINE_FAILED, code="engine_failed")


async def _merged(streams: list[Stream]) -> AsyncIterator[tuple[int, list[OutputDelta]]]:
    queue: asyncio.Queue[tuple[int, list[OutputDelta]] | None] = asyncio.Queue()

    async def pump(index: int) -> None:
        async for deltas in streams[index]:
            queue.put_nowait((index, deltas))
        queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(index)) for index in range(len(streams))]
    try:
        for _ in tasks:
            while (item := await queue.get()) is not None:
                yield item
    finally:
        for task in tasks:
            task.cancel()
