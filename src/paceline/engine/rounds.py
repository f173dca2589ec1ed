"""Makes the Round of each stream that got tokens in a step, and explains it to those who ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.core import (
    CutReason,
    ExplainedRound,
    Request,
    Round,
    StepInfo,
    StreamInfo,
    TokenKind,
    Verdict,
)
from paceline.drafters.base import Drafter
from paceline.engine.draft import Draft
from paceline.engine.output import Commit
from paceline.engine.scheduler import Scheduled


class RoundMaker:
    """Makes rounds. What all rounds of a stream share is made once, while the stream runs."""

    def __init__(self, drafters: Mapping[str, Drafter], rule: str) -> None:
        self._drafters, self._rule = drafters, rule
        self._streams: dict[str, StreamInfo] = {}

    def make(
        self, entry: Scheduled, commit: Commit, verdict: Verdict, step: StepInfo, ar_seconds: float
    ) -> Round:
        """Make the round of an entry whose tokens are committed."""
        request, draft, kinds = entry.request, entry.draft, commit.kinds
        position = len(request.tokens) - len(request.prompt_ids) - len(commit.token_ids)
        cut_by = cut_reason(entry) if position else CutReason.PROMPT
        bonus, forced = kinds.count(TokenKind.BONUS), kinds.count(TokenKind.FORCED)
        return Round(  # by position, which takes half of what names take
            position,
            draft.depth - len(draft.forced_verified) if draft.forced else draft.depth,
            len(kinds) - bonus - forced,
            bonus > 0,
            forced,
            len(draft.proposed),
            draft.depth,
            draft.part,
            cut_by,
            step.draft_seconds + step.seconds,
            ar_seconds,
            verdict.distance,
            verdict.replaced,
            self._stream(request),
            step,
            draft.length + draft.branch_rows - draft.depth,
        )

    def forget(self, request_id: str) -> None:
        """Drop what is held of a stream that has ended."""
        self._streams.pop(request_id, None)

    def _stream(self, request: Request) -> StreamInfo:
        stream = self._streams.get(request.id)
        if stream is None or stream.drafter != request.drafter:  # a drafter that failed is dropped
            drafter = request.drafter
            stream = StreamInfo(
                request=request.id,
                cohort=request.cohort,
                drafter=drafter,
                version=None if drafter is None else self._drafters[drafter].version,
                rule=self._rule,
                temperature=request.params.temperature,
                grammar=request.params.grammar is not None,
            )
            if request.finished is None:  # forget() has been called for one that has failed
                self._streams[request.id] = stream
        return stream


def cut_reason(entry: Scheduled) -> CutReason | None:
    """Return what kept the draft from being longer, if anything did."""
    request, draft = entry.request, entry.draft
    if request.drafter_failed:
        return CutReason.FAILED
    if request.drafter is None:
        return CutReason.HELD_BACK if request.held_back else CutReason.OFF
    if not entry.draft_limit:
        return draft.cut_by or CutReason.ROOM
    if not draft.proposed and draft.cut_by in (None, CutReason.ROOM):
        return CutReason.NOTHING
    if draft.cut_by is not None:
        return draft.cut_by
    filled = len(draft.proposed) >= entry.draft_limit
    return CutReason.ROOM if filled and entry.draft_limit < request.max_draft_len else None


def explained(draft: Draft, committed: Sequence[int]) -> ExplainedRound:
    """The tokens of a draft as its client may see them: all, or of a draft that was looked up in
    the text of other requests only what was committed. Forced tokens behind a rejected one are left
    out as well: which they are depends on the rejected one."""
    confidence = None if draft.confidence is None else tuple(draft.confidence)
    verified = tuple(draft.path_to(committed))
    forced = tuple(sorted(draft.forced_verified))
    if not draft.from_others:
        return ExplainedRound(tuple(draft.proposed), verified, forced, confidence)
    pairs = enumerate(zip(verified, committed, strict=False))
    stands = next((i for i, (token, true) in pairs if token != true), None)
    stands = min(len(verified), len(committed)) if stands is None else stands
    shown = tuple(token for i, token in enumerate(verified[:stands]) if i not in draft.forced)
    return ExplainedRound(
        shown,
        verified[:stands],
        tuple(place for place in forced if place < stands),
        None if confidence is None else confidence[: len(shown)],
        hidden=len(draft.proposed) - len(shown),
    )
