"""The live baseline: what the same tokens would have taken without speculation.

A step that drafts is compared with steps of the same requests that don't, at the step's own pace:
the cost table says how much longer the drafts' rows made it. A step without drafts is its own
baseline, so what is left there is the price of drafters that are merely attached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.engine.scheduler import Scheduled, looking_back
from paceline.engine.step_cost import StepCost

HORIZON = 60.0  # seconds of decoding that the recent speedup looks back on


@dataclass(slots=True)
class Baseline:
    """Seconds of all decode steps, drafting included, and of the AR steps in their place."""

    seconds: float = 0.0
    ar_seconds: float = 0.0
    _recent: float = 0.0
    _recent_ar: float = 0.0

    def add(
        self,
        cost: StepCost,
        scheduled: Sequence[Scheduled],
        chosen: Sequence[int],
        step: float,
        drafting: float,
    ) -> list[float]:
        """Count a step that took `step` seconds and `drafting` seconds beside it.

        `chosen` are the tokens that each request with a round committed by choice: what a grammar
        forces comes without speculation as well, in the same step. Return, for each of them, the
        seconds of as many steps without drafts. Steps of prompts alone are the same either way and
        left out.
        """
        requests, decoding = len(scheduled), len(chosen)
        if not decoding:
            return []
        drafted = sum([entry.draft.length + entry.draft.branch_rows for entry in scheduled])
        if not drafted:
            self._count(step + drafting, step)
            return [step] * decoding
        tokens = [max(1, count) for count in chosen]
        rows = sum(entry.count for entry in scheduled)
        pace = step / cost(rows + drafted, requests, looking_back(cost, scheduled))
        plain_back = sum([cost.looking_back(e.start, e.count) for e in scheduled])
        next_back = sum([cost.looking_back(e.start, 1) for e in scheduled if e.samples])
        # The first token of each comes from a step with the same prompts beside it.
        more = (sum(tokens) - decoding) / decoding
        first = pace * cost(rows, requests, plain_back)
        others = pace * cost(decoding, decoding, next_back)
        plain = first + more * others
        self._count(step + drafting, plain)
        return [first + (count - 1) * others for count in tokens]

    def _count(self, seconds: float, plain: float) -> None:
        self.seconds += seconds
        self.ar_seconds += plain
        kept = max(0.0, 1 - seconds / HORIZON)
        self._recent = kept * self._recent + seconds
        self._recent_ar = kept * self._recent_ar + plain

    @property
    def speedup(self) -> float:
        """AR seconds / seconds over about the last minute of decoding; 1 before anything ran."""
        return self._recent_ar / self._recent if self._recent else 1.0
