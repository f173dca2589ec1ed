"""Share the rows of a step between prompts and decoding requests.

A prompt that waits keeps a place idle, and each of its rows costs the same now or later: so it gets
on as fast as those who wait for their next token can bear. A short prompt is computed in one step,
which may take up to `SHORT_STRETCH` times as long. A longer one is computed in chunks: prompts and
decoding requests share the time by their number, and a chunk may stretch a step by `max_stretch` in
any case. What it looks back on must be read however few its rows are, so the rows give way to that
only down to half of their share. With a `tpot_goal` steps beside prompts take that long instead,
and a prompt that would miss its `ttft_goal` gets as many rows as short ones do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from paceline.core import Request
from paceline.engine.step_cost import StepCost

SHORT_STRETCH = 8.0
READING = 1.25  # times the share of a chunk: what it may take with what must be read before it


@dataclass(slots=True)
class PromptRows:
    """The room for prompts in one step of `rows` rows so far, which `left` at most may follow.

    Those rows are of `requests` requests, and look back for `back`. Prompts may add `whole` seconds
    where a prompt ends in the step, and `chunk` seconds where it does not; no more in any case if
    they are `strict`.
    """

    cost: StepCost
    rows: int
    left: int
    whole: float = inf
    chunk: float = inf
    strict: bool = False
    requests: int = 1
    back: float = 0.0  # of all rows so far; of a chunk only what grows with its rows
    step: float = field(init=False)
    taken: bool = False

    def __post_init__(self) -> None:
        self.step = self.cost(self.rows, self.requests, self.back)

    def of(self, request: Request) -> int:
        """Return how many rows of its prompt a request may have. The first one gets one at least:
        however dear a row is, a prompt gets on."""
        pending = len(request.tokens) - request.computed
        if request.computed == request.cached_tokens and pending <= self._within(
            self.whole, request
        ):
            return pending
        return max(self._within(self.chunk, request), min(1, self.left) if not self.taken else 0)

    def take(self, request: Request, rows: int) -> None:
        self.taken = True
        self.rows += rows
        self.left -= rows
        self.back += self.cost.attending(request.computed, rows)

    @property
    def full(self) -> bool:
        """Return whether no prompt gets anything any more."""
        more = self.cost(self.rows + 1, self.requests, self.back) - self.step
        return self.left <= 0 or (self.taken and more > max(self.whole, self.chunk))

    def _within(self, seconds: float, request: Request) -> int:
        """Return how many rows of a prompt can be added in so many seconds."""
        if seconds == inf:
            return self.left
        start, reading = request.computed, self.cost.reading(request.computed)
        least = 0.0 if self.strict else seconds / 2
        most = (1.0 if self.strict else READING) * seconds - reading
        share = min(seconds, max(least, most))
        return self.cost.rows_within(
            self.step + share,
            self.rows,
            self.left,
            requests=self.requests,
            start=start,
            back=self.back,
        )


@dataclass(frozen=True, slots=True)
class PromptShare:
    """Shares a step's rows. Goals are in seconds; None: there is no such goal."""

    max_stretch: float
    ttft_goal: float | None = None
    tpot_goal: float | None = None

    def rows(
        self,
        cost: StepCost,
        decode_rows: int,
        decoding: int,
        prompts: Sequence[Request],
        most: int,
        back: float = 0.0,
    ) -> PromptRows:
        """Return the room for `prompts`, which wait, beside `decoding` requests of `decode_rows`
        rows, their drafts included, which look back for `back`; for `most` rows at most."""
        step = cost(decode_rows, decoding, back)
        short = SHORT_STRETCH * step
        long = step * max(self.max_stretch, 1 + len(prompts) / decoding)
        if self.tpot_goal is not None:
            short = long = max(self.tpot_goal, step)
        elif self._is_late(cost, step, long, prompts):
            long = short
        strict = self.tpot_goal is not None
        chunk = min(short, long) - step
        return PromptRows(
            cost, decode_rows, most, short - step, chunk, strict, requests=decoding, back=back
        )

    def _is_late(
        self, cost: StepCost, step: float, stretched: float, prompts: Sequence[Request]
    ) -> bool:
        """Return whether the oldest prompt would miss its goal with steps of `stretched` seconds,
        of which the decoding requests need `step`."""
        if self.ttft_goal is None or not prompts:
            return False
        first = prompts[0]
        pending = len(first.tokens) - first.computed
        work = cost(pending, 1, cost.looking_back(first.computed, pending))
        left = work / max(1e-9, 1 - step / stretched)
        return time.monotonic() - first.arrival + left > self.ttft_goal
