"""Share the rows of a step between prompts and decoding requests.

A prompt that waits keeps a place idle, and each of its rows costs the same now or later: so it gets
on as fast as those who wait for their next token can bear. A short prompt is computed in one step,
which may take up to `SHORT_STRETCH` times as long. A longer one is computed in chunks: prompts and
decoding requests share the time by their number, and a chunk may stretch a step by `max_stretch` in
any case. With a `tpot_goal` steps beside prompts take that long instead, and a prompt that would
miss its `ttft_goal` gets as many rows as short ones do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core import Request
from paceline.engine.step_cost import StepCost

SHORT_STRETCH = 8.0


@dataclass(slots=True)
class PromptRows:
    """The rows that are left for the prompts of one step: `whole` for prompts that end in it, of
    which `chunk` for those that do not."""

    whole: int
    chunk: int

    def of(self, request: Request) -> int:
        """Return how many rows of its prompt a request may have."""
        pending = len(request.tokens) - request.computed
        begun = request.computed > request.cached_tokens
        return pending if pending <= self.whole and not begun else min(self.chunk, self.whole)

    def take(self, rows: int) -> None:
        self.whole -= rows
        self.chunk = max(0, self.chunk - rows)


@dataclass(frozen=True, slots=True)
class PromptShare:
    """Shares a step's rows. Goals are in seconds; None: there is no such goal."""

    max_stretch: float
    ttft_goal: float | None = None
    tpot_goal: float | None = None

    def rows(
        self, cost: StepCost, decode_rows: int, decoding: int, prompts: Sequence[Request], most: int
    ) -> PromptRows:
        """Return the rows for `prompts`, which wait, beside `decoding` requests of `decode_rows`
        rows, their drafts included; at most `most`."""
        step = cost(decode_rows)
        short = SHORT_STRETCH * step
        long = step * max(self.max_stretch, 1 + len(prompts) / decoding)
        if self.tpot_goal is not None:
            short = long = max(self.tpot_goal, step)
        elif self._is_late(cost, step, long, prompts):
            long = short
        whole, chunk = (
            cost.rows_within(min(seconds, short), decode_rows, most) for seconds in (short, long)
        )
        return PromptRows(whole, chunk)

    def _is_late(
        self, cost: StepCost, step: float, stretched: float, prompts: Sequence[Request]
    ) -> bool:
        """Return whether the oldest prompt would miss its goal with steps of `stretched` seconds,
        of which the decoding requests need `step`."""
        if self.ttft_goal is None or not prompts:
            return False
        first = prompts[0]
        work = cost(len(first.tokens) - first.computed)
        left = work / max(1e-9, 1 - step / stretched)
        return time.monotonic() - first.arrival + left > self.ttft_goal
