"""Explains rounds to those who asked: what was drafted, verified and forced, and what cut it short.

Nothing is made for requests that did not ask.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core import ExplainedRound, OutputDelta, Request, RoundRecord, TokenKind
from paceline.drafters.base import Drafter
from paceline.engine.scheduler import Scheduled

# Why a draft is shorter than it could be; the draft policies add reasons of their own.
PROMPT = "prompt"  # the step computed the prompt: there was nothing to draft from
OFF = "off"  # speculation is off for the request
HELD_BACK = "held back"  # to compare the others with
ROOM = "room"  # rows of the step, blocks, or tokens until the end of the stream
NOTHING = "drafter"  # it had nothing to propose


@dataclass(frozen=True, slots=True)
class Step:
    """What the rounds of a step share; times in seconds."""

    requests: int
    rows: int
    drafting: float
    others: float


class Explainer:
    def __init__(self, drafters: Mapping[str, Drafter], rule: str) -> None:
        self._drafters, self._rule = drafters, rule

    def explain(
        self, rounds: Sequence[Scheduled], deltas: Sequence[OutputDelta], step: Step
    ) -> None:
        """Puts its round into each delta whose request asked for it."""
        for entry, delta in zip(rounds, deltas, strict=True):
            if entry.request.explain:
                delta.round = self._round(entry, delta, step)

    def _round(self, entry: Scheduled, delta: OutputDelta, step: Step) -> ExplainedRound:
        request, kinds = entry.request, delta.kinds
        drafter = request.drafter
        confidence, first = entry.confidence, delta.completion_tokens == len(delta.token_ids)
        record = RoundRecord(
            request=request.id,
            time=time.time(),
            cohort=request.cohort,
            drafter=drafter,
            version=None if drafter is None else self._drafters[drafter].version,
            part=entry.part,
            position=delta.completion_tokens - len(delta.token_ids),
            proposed=len(entry.drafted),
            verified=len(entry.draft),
            accepted=kinds.count(TokenKind.ACCEPTED),
            forced=kinds.count(TokenKind.FORCED),
            cut_by=PROMPT if first else reason(entry),
            confidence=None if confidence is None else tuple(confidence),
            rule=self._rule,
            temperature=request.params.temperature,
            grammar=request.params.grammar is not None,
            step_requests=step.requests,
            step_rows=step.rows,
            draft_ms=1e3 * step.drafting,
            step_ms=1e3 * step.others,
        )
        return ExplainedRound(
            record, tuple(entry.drafted), tuple(entry.draft), tuple(sorted(entry.forced))
        )


def reason(entry: Scheduled) -> str | None:
    """What kept the draft from being longer, if anything did."""
    request: Request = entry.request
    if request.drafter is None:
        return HELD_BACK if request.held_back else OFF
    if not entry.draft_room:
        return entry.cut_by or ROOM
    if not entry.drafted and entry.cut_by in (None, ROOM):
        return NOTHING
    if entry.cut_by is not None:
        return entry.cut_by
    filled = len(entry.drafted) >= entry.draft_room
    return ROOM if filled and entry.draft_room < request.max_draft_len else None
