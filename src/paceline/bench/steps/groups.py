"""One engine at a fixed batch: groups of requests that decode in turns, a step at a time.

The requests of one group run while the others are set aside with their KV in place. So plain
decoding and speculation take turns step by step, and what slows the machine down slows both.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.bench.load.answers import fresh_requests
from paceline.core import InvalidRequest, Request, SamplingParams, SpeculativeParams
from paceline.engine.driver import Driver
from paceline.engine.engine import Engine

GREEDY = SamplingParams(temperature=0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step: tokens `committed` per request; `context` is the mean length before the anchor."""

    seconds: float
    drafting: float
    committed: tuple[int, ...]
    context: float


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Requests that decode together. `Steady.begin` makes one and computes the prompts."""

    requests: list[Request]

    @property
    def running(self) -> list[Request]:
        return [request for request in self.requests if request.finish_reason is None]

    @property
    def complete(self) -> bool:
        """True while none of the requests has ended."""
        return len(self.running) == len(self.requests)

    @property
    def tokens(self) -> int:
        """Output tokens so far."""
        return sum(request.output_len for request in self.requests)

    def draft(self, length: int) -> None:
        """Set the draft length of the next steps, at most the one the group began with; 0 is AR."""
        for request in self.requests:
            request.max_draft_len = length


def quieten() -> None:
    """Keep the garbage collector, as a server does, from walking through all that is loaded."""
    gc.collect()
    gc.freeze()


class Steady:
    """Owns the stepping of an engine that nobody else uses meanwhile.

    The engine needs room for all groups at once: `max_num_seqs` requests, and their blocks.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._driver = Driver(engine)

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        speculation: SpeculativeParams,
        params: SamplingParams | Sequence[SamplingParams] = GREEDY,
        *,
        salt: bytes | None = None,
        seed: int | None = None,
    ) -> StepGroup:
        """Return a group of one request for each prompt, computed up to its first token.

        Groups of the same `salt` share what the prefix cache holds; by default each request has a
        new scope. With `seed` the i-th request draws from seed + i: no two share their draws.
        Raises InvalidRequest where there is no memory left for their KV.
        """
        by_prompt = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        requests: list[Request] = []
        for index, (prompt, sampling) in enumerate(zip(prompts, by_prompt, strict=True)):
            if seed is not None:
                sampling = replace(sampling, seed=seed + index)
            requests += fresh_requests(self.engine, prompt, sampling, speculation, salt=salt)
        self.engine.add(requests)
        group = StepGroup(requests)
        # A request with its first token waits for the others: all begin to decode at once.
        while waiting := [request for request in requests if not request.output_len]:
            before = sum(request.computed for request in requests)
            with self._driver.only(waiting):
                self.engine.step()
            if sum(request.computed for request in requests) == before:
                self.end(group)
                raise self._no_room()
        return group

    def step(self, group: StepGroup) -> TimedStep:
        """Run one round of the running requests. Raises InvalidRequest where their KV ran out."""
        requests = group.running
        before = [request.output_len for request in requests]
        context = sum(len(request.tokens) - 1 for request in requests) / max(1, len(requests))
        start = time.perf_counter()
        with self._driver.only(requests):
            deltas = self.engine.step()
        seconds = time.perf_counter() - start
        steps = [d.round.step for d in deltas if d.round is not None and d.round.step is not None]
        drafting = steps[0].draft_seconds if steps else 0.0
        if any(request.preemptions for request in requests):
            raise self._no_room()
        pairs = zip(requests, before, strict=True)
        committed = tuple(request.output_len - length for request, length in pairs)
        return TimedStep(seconds, drafting, committed, context)

    def end(self, group: StepGroup) -> None:
        """End the requests that have not ended, and free their memory."""
        for request in group.running:
            self.engine.abort(request.id)

    def _no_room(self) -> InvalidRequest:
        blocks = f"{self.engine.cache.num_blocks} blocks"
        return InvalidRequest("kv_memory", blocks, "room for all groups at once")
