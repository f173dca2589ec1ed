"""Rounds of requests that asked to be explained, kept for a while for those who sent them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from paceline.core import FinishReason, OutputDelta
from paceline.core.rounds import acceptance_length
from paceline.server.errors import ApiError
from paceline.server.page_answers import RecentRequest
from paceline.server.responses import picked, write_json
from paceline.server.round_bodies import RoundFacts, RoundToken, ShownRound, StreamFacts
from paceline.server.tokens import TokenTexts

MIB = 2**20
MOST_REQUESTS = 256
MOST_LISTED = 50
MOST_BYTES = 64 * MIB  # of all requests together
MOST_REQUEST_BYTES = 8 * MIB
# Estimated bytes in 64-bit CPython, held against tracemalloc by a test.
LOG_BYTES = 1000
CHOICE_BYTES = 420
ROUND_BYTES = 50  # beside its JSON


@dataclass(slots=True)
class ChoiceRounds:
    """The rounds of one choice in order, each a ShownRound as JSON. `left_out` counts later ones,
    for which there was no room within the bound of a request. The other counts are of all rounds:
    committed tokens, rounds with a draft, and their accepted tokens."""

    rounds: list[bytes] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    left_out: int = 0
    tokens: int = 0
    draft_rounds: int = 0
    accepted: int = 0

    def count(self, delta: OutputDelta) -> None:
        self.tokens += len(delta.token_ids)
        if delta.round is not None and delta.round.drafted:
            self.draft_rounds += 1
            self.accepted += delta.round.accepted

    def copy(self) -> ChoiceRounds:
        return replace(self, rounds=[*self.rounds])


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
        """Keep the round of a delta of choice `index`, as far as there is room."""
        choice = self.choices[index]
        choice.finish_reason = delta.finish_reason
        choice.count(delta)
        if delta.explained is None or not self._store.holds(self):
            return
        if choice.left_out:
            choice.left_out += 1
            return
        entry = write_json(round_shown(delta, self._store.texts))
        size = ROUND_BYTES + len(entry)
        if self.estimated_bytes + size > MOST_REQUEST_BYTES:
            choice.left_out = 1
        elif self._store.grow(self, size):
            choice.rounds.append(entry)

    def discard(self) -> None:
        """Forget the request: it was aborted or has failed, and nobody will ask for it."""
        self._store.drop(self)

    def writer(self) -> Callable[[], bytes]:
        """Return what writes the answer of GET /v1/requests/{id}/rounds, on any thread. A request
        that still runs shows what there is now."""
        facts = {
            "id": self.id,
            "object": "request.rounds",
            "created": self.created,
            "model": self.model,
        }
        return partial(_written, facts, [choice.copy() for choice in self.choices])

    def listed(self) -> RecentRequest:
        """Return the request's line in a list. AL is that of all its choices."""
        choices = self.choices
        accepted = sum(choice.accepted for choice in choices)
        draft_rounds = sum(choice.draft_rounds for choice in choices)
        return {
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "finish_reasons": [choice.finish_reason for choice in choices],
            "tokens": sum(choice.tokens for choice in choices),
            "rounds": sum(len(choice.rounds) + choice.left_out for choice in choices),
            "acceptance_length": acceptance_length(accepted, draft_rounds),
        }


class RoundStore:
    """The latest requests that asked; the oldest go first. Belongs to the event loop.

    Holds at most MOST_REQUESTS requests and about MOST_BYTES bytes.
    """

    def __init__(self, texts: TokenTexts) -> None:
        self.texts = texts
        self.estimated_bytes = 0
        self._logs: OrderedDict[str, RoundLog] = OrderedDict()

    def open(
        self, request_id: str, owner: str, *, created: int, model: str, choices: int
    ) -> RoundLog:
        """Return a log to write a request's rounds to. `owner` is the API key that the request came
        with, or nothing on an open server."""
        log = RoundLog(self, request_id, owner, created=created, model=model, n=choices)
        self._logs[request_id] = log
        self.estimated_bytes += log.estimated_bytes
        self._evict()
        return log

    def holds(self, log: RoundLog) -> bool:
        """Return whether the log is still kept."""
        return log.id in self._logs

    def grow(self, log: RoundLog, size: int) -> bool:
        """Make room for `size` bytes more of a log; return False where the log itself had to go."""
        if log.id not in self._logs:
            return False
        log.estimated_bytes += size
        self.estimated_bytes += size
        self._evict()
        return log.id in self._logs

    def drop(self, log: RoundLog) -> None:
        if self._logs.pop(log.id, None) is not None:
            self.estimated_bytes -= log.estimated_bytes
            log.choices = [ChoiceRounds() for _ in log.choices]

    def find(self, request_id: str, owner: str) -> RoundLog:
        """Return the log of a request. Raises ApiError (404) if there is none for `owner`."""
        log = self._logs.get(request_id)
        if log is None or log.owner != owner:
            message = (
                f"id: no rounds of {request_id!r} here; they are kept for the last {MOST_REQUESTS} "
                f'requests that had "explain": true and were answered, up to {MOST_BYTES // MIB} '
                "MiB in all, for the API key that sent them"
            )
            raise ApiError(404, message, param="id", code="rounds_not_found")
        return log

    def latest(self, owner: str) -> list[RecentRequest]:
        """Return the newest MOST_LISTED requests of `owner`, the newest first."""
        own = (log for log in reversed(self._logs.values()) if log.owner == owner)
        return [log.listed() for log in islice(own, MOST_LISTED)]

    def _evict(self) -> None:
        while len(self._logs) > MOST_REQUESTS or self.estimated_bytes > MOST_BYTES:
            self.drop(next(iter(self._logs.values())))


def _written(facts: dict[str, object], choices: Sequence[ChoiceRounds]) -> bytes:
    """Return a RequestRounds as JSON. The rounds, which are JSON already, may be megabytes."""
    parts = [write_json(facts)[:-1], b',"choices":[']
    for index, choice in enumerate(choices):
        named = write_json({"index": index, "finish_reason": choice.finish_reason})
        parts += [b"," if index else b"", named[:-1], b',"rounds":[', b",".join(choice.rounds)]
        parts.append(b'],"rounds_left_out":%d}' % choice.left_out)
    return b"".join([*parts, b"]}"])


def round_shown(delta: OutputDelta, texts: TokenTexts) -> ShownRound:
    """Return the round of a delta whose request asked to be explained. What may not be shown has
    been taken out by the engine already."""

    def tokens(ids: Iterable[int]) -> list[RoundToken]:
        return [{"id": token, "text": texts[token][0]} for token in ids]

    round, explained = delta.round, delta.explained
    assert round is not None and explained is not None
    stream, step = round.stream, round.step
    assert stream is not None and step is not None, "the engine's rounds have both"
    committed = zip(tokens(delta.token_ids), delta.kinds, strict=True)
    return {
        **picked(StreamFacts, stream),
        **picked(RoundFacts, round),
        "time": step.time,
        "confidence": explained.confidence,
        "step_requests": step.requests,
        "step_rows": step.rows,
        "draft_ms": 1e3 * step.draft_seconds,
        "step_ms": 1e3 * step.seconds,
        "drafted_tokens": tokens(explained.drafted),
        "hidden_tokens": explained.hidden,
        "verified_tokens": tokens(explained.verified),
        "forced_places": explained.forced,
        "committed_tokens": [{**token, "kind": kind} for token, kind in committed],
    }
