"""One engine at a fixed batch: groups of requests that decode in turns, a step at a time.

The engine's step is for everybody who runs. Here those of one group run while the others are set
aside with their KV in place, so that plain decoding and speculation can take turns step by step on
one engine: what slows the machine down slows down both.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.core import InvalidRequest, Request, SamplingParams, SpeculativeParams

if TYPE_CHECKING:
    from paceline.engine.engine import Engine

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
_names = itertools.count()


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step of one group: seconds of all of it and of its drafting, the tokens that it committed
    for each request, and the tokens before the anchor, on average over the requests."""

    seconds: float
    drafting: float
    committed: tuple[int, ...]
    context: float


class StepGroup:
    """Requests that decode together. Made by `Steady.begin`, which has computed their prompts."""

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests

    @property
    def running(self) -> list[Request]:
        return [request for request in self.requests if request.finish_reason is None]

    @property
    def complete(self) -> bool:
        """Whether none of its requests has ended."""
        return len(self.running) == len(self.requests)

    @property
    def tokens(self) -> int:
        """Of output, so far."""
        return sum(request.output_len for request in self.requests)

    def draft(self, length: int) -> None:
        """Changes the draft length of its steps from now on; 0 is AR. Longer than what the group's
        wish allowed is what the drafter may refuse."""
        for request in self.requests:
            request.max_draft_len = length


def quieten() -> None:
    """Keeps the garbage collector from walking through all that is loaded, as a server does: no
    step pays for it."""
    gc.collect()
    gc.freeze()


class Steady:
    """Owns the stepping of an engine that nobody else uses meanwhile.

    The engine needs room for all groups at once: `max_num_seqs` requests, and their blocks.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._groups: list[StepGroup] = []

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        wish: SpeculativeParams,
        params: SamplingParams | Sequence[SamplingParams] = GREEDY,
        *,
        salt: bytes | None = None,
        seed: int | None = None,
    ) -> StepGroup:
        """A group of one request for each prompt, computed up to its first token.

        Groups of the same `salt` share what the prefix cache holds; by default a group has a scope
        of its own. With `seed` the i-th request draws from seed + i: no two share their draws.
        Raises InvalidRequest where there is no memory left for their KV.
        """
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        requests = []
        for index, (prompt, own) in enumerate(zip(prompts, each, strict=True)):
            name = f"steady-{next(_names)}"
            if seed is not None:
                own = replace(own, seed=seed + index)
            scope = name.encode() if salt is None else salt
            requests += self.engine.make_requests(
                list(prompt), own, wish, request_id=name, salt=scope
            )
        self._set_running([])
        self.engine.add(requests)
        while not all(request.output_len for request in requests):
            before = sum(request.computed for request in requests)
            self.engine.step()
            if sum(request.computed for request in requests) == before:
                self._abort(requests)
                raise self._no_room()
            # Who has its first token waits for the others: all begin to decode at once.
            running = self.engine.scheduler.running
            self._set_running([request for request in running if not request.output_len])
        group = StepGroup(requests)
        self._groups.append(group)
        return group

    def step(self, group: StepGroup) -> TimedStep:
        """One round of those of the group that have not ended. Raises InvalidRequest where memory
        for their KV ran out: what is measured then is no steady state."""
        running = group.running
        self._set_running(running)
        before = [request.output_len for request in running]
        context = sum(len(request.tokens) - 1 for request in running) / max(1, len(running))
        drafting, start = self.engine.drafting.seconds, time.perf_counter()
        self.engine.step()
        seconds = time.perf_counter() - start
        if any(request.preemptions for request in running):
            raise self._no_room()
        pairs = zip(running, before, strict=True)
        committed = tuple(request.output_len - said for request, said in pairs)
        return TimedStep(seconds, self.engine.drafting.seconds - drafting, committed, context)

    def end(self, group: StepGroup) -> None:
        """Ends what has not ended and frees its memory."""
        self._abort(group.running)
        self._groups.remove(group)
        self._set_running([request for other in self._groups for request in other.running])

    def _abort(self, requests: list[Request]) -> None:
        # Only of those who run does the engine take the memory back.
        self._set_running([request for request in requests if request.blocks])
        for request in requests:
            self.engine.abort(request.id)

    def _no_room(self) -> InvalidRequest:
        blocks = f"{self.engine.cache.num_blocks} blocks"
        return InvalidRequest("kv_memory", blocks, "room for all groups at once")

    def _set_running(self, requests: list[Request]) -> None:
        self.engine.scheduler.running = list(requests)
