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
FAILED = "failed"  # its drafter raised an error
ROOM = "room"  # rows of the step, blocks, or tokens until the end of the stream
NOTHING = "drafter"  # it had nothing to propose


@dataclass(frozen=True, slots=True)
class Step:
    """What the rounds of a step share; times in seconds."""

    requests: int
    rows: int
    drafting: float
    others: float


@dataclass(frozen=True, slots=True)
class Shown:
    """The tokens of one draft that its client may see, as in ExplainedRound."""

    drafted: tuple[int, ...]
    verified: tuple[int, ...]
    forced: tuple[int, ...]
    confidence: tuple[float, ...] | None
    hidden: int


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
        shown, first = shown_of(entry, delta), delta.completion_tokens == len(delta.token_ids)
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
            confidence=shown.confidence,
            rule=self._rule,
            temperature=request.params.temperature,
            grammar=request.params.grammar is not None,
            step_requests=step.requests,
            step_rows=step.rows,
            draft_ms=1e3 * step.drafting,
            step_ms=1e3 * step.others,
        )
        return ExplainedRound(record, shown.drafted, shown.verified, shown.forced, shown.hidden)


def shown_of(entry: Scheduled, delta: OutputDelta) -> Shown:
    """The whole draft; of one that was looked up in other requests' text only what was committed.

    Anything else of such a draft is another client's text. Forced tokens behind a rejected one are
    left out as well: which they are depends on the rejected one.
    """
    confidence = None if entry.confidence is None else tuple(entry.confidence)
    if not entry.from_others:
        forced = tuple(sorted(entry.forced))
        return Shown(tuple(entry.drafted), tuple(entry.draft), forced, confidence, 0)
    pairs = enumerate(zip(entry.draft, delta.token_ids, strict=False))
    stands = next((i for i, (drafted, committed) in pairs if drafted != committed), None)
    stands = min(len(entry.draft), len(delta.token_ids)) if stands is None else stands
    verified = tuple(entry.draft[:stands])
    drafted = tuple(token for i, token in enumerate(verified) if i not in entry.forced)
    return Shown(
        drafted,
        verified,
        tuple(sorted(place for place in entry.forced if place < stands)),
        None if confidence is None else confidence[: len(drafted)],
        len(entry.drafted) - len(drafted),
    )


def reason(entry: Scheduled) -> str | None:
    """What kept the draft from being longer, if anything did."""
    request: Request = entry.request
    if request.drafter_failed:
        return FAILED
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
