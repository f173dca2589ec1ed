"""Rounds of requests that asked to be explained, kept for a while for those who sent them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core import ExplainedRound, FinishReason, OutputDelta, Round, TokenKind
from paceline.server.errors import ApiError
from paceline.server.tokens import TokenTexts

MIB = 2**20
MOST_REQUESTS = 256
MOST_BYTES = 64 * MIB  # of all requests together, by the estimates below
MOST_REQUEST_BYTES = 8 * MIB

# Estimated bytes in 64-bit CPython, held against tracemalloc by a test.
LOG_BYTES = 1000
CHOICE_BYTES = 300
ROUND_BYTES = 800  # the record, its numbers and the empty tuples
TOKEN_BYTES = 40  # a token id that is an object of its own, and its place in a tuple
NUMBER_BYTES = 32  # a confidence and its place
PLACE_BYTES = 8  # of what is held elsewhere: a verified token is a drafted one, kinds are few


@dataclass(frozen=True, slots=True)
class KeptRound:
    """One round, and what it committed. Holds nothing else of the delta that brought it."""

    round: Round
    explained: ExplainedRound
    token_ids: tuple[int, ...]
    kinds: tuple[TokenKind, ...]

    @classmethod
    def of(cls, delta: OutputDelta) -> KeptRound:
        """The round of a delta whose request asked to be explained."""
        assert delta.round is not None and delta.explained is not None
        return cls(delta.round, delta.explained, delta.token_ids, delta.kinds)

    @property
    def estimated_bytes(self) -> int:
        explained = self.explained
        tokens = len(explained.drafted) + len(self.token_ids)
        places = len(explained.verified) + len(explained.forced) + len(self.kinds)
        numbers = len(explained.confidence or ())
        return ROUND_BYTES + TOKEN_BYTES * tokens + NUMBER_BYTES * numbers + PLACE_BYTES * places


@dataclass(slots=True)
class ChoiceRounds:
    """The rounds of one choice in order. `left_out` counts later ones, for which there was no room
    within the bound of a request."""

    rounds: list[KeptRound] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    left_out: int = 0


class RoundLog:
    """The rounds of one request: what its job writes and GET /v1/requests/{id}/rounds reads."""

    def __init__(
        self, store: RoundStore, request_id: str, owner: str, *, created: int, model: str, n: int
    ) -> None:
        self.id, self.owner, self.created, self.model = request_id, owner, created, model
        self.choices = [ChoiceRounds() for _ in range(n)]
        self.estimated_bytes = LOG_BYTES + CHOICE_BYTES * n
        self._store = store

    def note(self, index: int, delta: OutputDelta) -> None:
        """Keeps what a delta of choice `index` says of its round, as far as there is room."""
        choice = self.choices[index]
        choice.finish_reason = delta.finish_reason
        if delta.explained is None:
            return
        entry = KeptRound.of(delta)
        size = entry.estimated_bytes
        if choice.left_out or self.estimated_bytes + size > MOST_REQUEST_BYTES:
            choice.left_out += 1
        elif self._store.grow(self, size):
            choice.rounds.append(entry)

    def discard(self) -> None:
        """Forgets the request: it was aborted or has failed, and nobody will ask for it."""
        self._store.drop(self)


class RoundStore:
    """The latest requests that asked; the oldest go first. Belongs to the event loop.

    Holds at most MOST_REQUESTS requests and about MOST_BYTES bytes.
    """

    def __init__(self) -> None:
        self._logs: OrderedDict[str, RoundLog] = OrderedDict()
        self._bytes = 0

    @property
    def estimated_bytes(self) -> int:
        return self._bytes

    def open(
        self, request_id: str, owner: str, *, created: int, model: str, choices: int
    ) -> RoundLog:
        """A log to write a request's rounds to. `owner` is the API key that the request came with,
        or nothing on an open server."""
        log = RoundLog(self, request_id, owner, created=created, model=model, n=choices)
        self._logs[request_id] = log
        self._bytes += log.estimated_bytes
        self._evict()
        return log

    def grow(self, log: RoundLog, size: int) -> bool:
        """Makes room for `size` bytes more of a log; False where the log itself had to go."""
        if log.id not in self._logs:
            return False
        log.estimated_bytes += size
        self._bytes += size
        self._evict()
        return log.id in self._logs

    def drop(self, log: RoundLog) -> None:
        if self._logs.pop(log.id, None) is not None:
            self._bytes -= log.estimated_bytes
            log.choices = [ChoiceRounds() for _ in log.choices]

    def find(self, request_id: str, owner: str) -> RoundLog:
        """Raises ApiError (404) for one that is not there, or somebody else's."""
        log = self._logs.get(request_id)
        if log is None or log.owner != owner:
            message = (
                f"id: no rounds of {request_id!r} here; they are kept for the last {MOST_REQUESTS} "
                f'requests that had "explain": true and were answered, up to {MOST_BYTES // MIB} '
                "MiB in all, for the API key that sent them"
            )
            raise ApiError(404, message, param="id", code="rounds_not_found")
        return log

    def _evict(self) -> None:
        while len(self._logs) > MOST_REQUESTS or self._bytes > MOST_BYTES:
            self.drop(next(iter(self._logs.values())))


def shown(log: RoundLog, texts: TokenTexts) -> dict[str, Any]:
    """Return the answer of GET /v1/requests/{id}/rounds; a request that still runs shows what there
    is."""
    return {
        "id": log.id,
        "object": "request.rounds",
        "created": log.created,
        "model": log.model,
        "choices": [
            {
                "index": index,
                "finish_reason": choice.finish_reason,
                "rounds": [round_shown(entry, texts) for entry in choice.rounds],
                "rounds_left_out": choice.left_out,
            }
            for index, choice in enumerate(log.choices)
        ],
    }


def round_shown(entry: KeptRound, texts: TokenTexts) -> dict[str, Any]:
    """A round as JSON. What may not be shown has been taken out by the engine already."""

    def tokens(ids: Iterable[int]) -> list[dict[str, Any]]:
        return [{"id": token, "text": texts[token][0]} for token in ids]

    round, explained = entry.round, entry.explained
    stream, step = round.stream, round.step
    assert stream is not None and step is not None, "the engine's rounds have both"
    return {
        "request": stream.request,
        "time": step.time,
        "cohort": stream.cohort,
        "drafter": stream.drafter,
        "version": stream.version,
        "part": round.part,
        "position": round.position,
        "proposed": round.proposed,
        "verified": round.verified,
        "accepted": round.accepted,
        "forced": round.forced,
        "cut_by": round.cut_by,
        "confidence": explained.confidence,
        "rule": stream.rule,
        "temperature": stream.temperature,
        "grammar": stream.grammar,
        "step_requests": step.requests,
        "step_rows": step.rows,
        "draft_ms": 1e3 * step.draft_seconds,
        "step_ms": 1e3 * step.seconds,
        "drafted_tokens": tokens(explained.drafted),
        "hidden_tokens": explained.hidden,
        "verified_tokens": tokens(explained.verified),
        "forced_places": list(explained.forced),
        "committed_tokens": _committed(tokens(entry.token_ids), entry.kinds),
    }


def _committed(
    tokens: Sequence[dict[str, Any]], kinds: Sequence[TokenKind]
) -> list[dict[str, Any]]:
    return [{**token, "kind": kind} for token, kind in zip(tokens, kinds, strict=True)]
