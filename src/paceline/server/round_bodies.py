"""Response bodies of `/v1/requests/ID/rounds`: what each round of a request did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from typing_extensions import TypedDict

from paceline.core import CutReason, TokenKind


class RoundToken(TypedDict):
    id: int
    text: str


class CommittedToken(RoundToken):
    kind: TokenKind


class StreamFacts(TypedDict):
    request: str
    cohort: str
    drafter: str | None
    version: str | None
    rule: str
    temperature: float
    grammar: bool


class RoundFacts(TypedDict):
    part: str | None
    position: int
    proposed: int
    verified: int
    accepted: int
    forced: int
    beside: int
    cut_by: CutReason | None


class ShownRound(StreamFacts, RoundFacts):
    """One round of one stream. Counts are in tokens, `draft_ms` and `step_ms` in milliseconds, and
    `time` in seconds since the epoch.

    `part` names the part of a composed drafter that made the draft. `position` is the index of the
    first output token that the round committed. The drafter proposed `proposed` tokens; `verified`
    of them, and of the tokens that the grammar forced among them, got a row in the target's
    forward, and with alternatives `beside` more; `accepted` of them were committed, without the
    forced ones. `cut_by` says why fewer were verified than the request allows. `confidence` is the
    drafter's own, for each proposed token. `step_requests` and `step_rows` count all requests and
    rows of the step.

    Each of `verified_tokens` had a row; at `forced_places` the grammar allowed one token only.
    `hidden_tokens` counts drafted tokens that are not listed because they come from the text of
    other requests.
    """

    time: float
    confidence: Sequence[float] | None
    step_requests: int
    step_rows: int
    draft_ms: float
    step_ms: float
    drafted_tokens: list[RoundToken]
    hidden_tokens: int
    verified_tokens: list[RoundToken]
    forced_places: Sequence[int]
    committed_tokens: list[CommittedToken]


class ExplainedChoice(TypedDict):
    index: int
    finish_reason: str | None
    rounds: list[ShownRound]
    rounds_left_out: int


class RequestRounds(TypedDict):
    """The rounds of every choice of one request."""

    id: str
    object: Literal["request.rounds"]
    created: int
    model: str
    choices: list[ExplainedChoice]
