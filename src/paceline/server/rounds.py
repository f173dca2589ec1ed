"""Rounds of requests that asked to be explained, kept for a while for those who sent them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from paceline.core import ExplainedRound, OutputDelta
from paceline.server.errors import ApiError
from paceline.server.job import Job
from paceline.server.tokens import TokenTexts

MOST_REQUESTS = 256
MOST_ROUNDS = 100_000  # of all of them


class RoundStore:
    """The latest requests that asked; the oldest go first. Belongs to the event loop."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, tuple[str, Job]] = OrderedDict()

    def keep(self, job: Job, owner: str) -> None:
        """`owner` is the API key that the request came with, or nothing on an open server."""
        self._jobs[job.id] = owner, job
        while len(self._jobs) > MOST_REQUESTS or (
            len(self._jobs) > 1 and self._rounds() > MOST_ROUNDS
        ):
            self._jobs.popitem(last=False)

    def find(self, request_id: str, owner: str) -> Job:
        """Raises ApiError (404) for one that is not there, or somebody else's."""
        found = self._jobs.get(request_id)
        if found is None or found[0] != owner:
            message = (
                f"id: no rounds of {request_id!r} here; they are kept for the last {MOST_REQUESTS} "
                'requests that had "explain": true, for the API key that sent them'
            )
            raise ApiError(404, message, param="id", code="rounds_not_found")
        return found[1]

    def _rounds(self) -> int:
        return sum(len(c.rounds) for _, job in self._jobs.values() for c in job.choices)


def shown(job: Job, texts: TokenTexts) -> dict[str, Any]:
    """What GET /v1/requests/{id}/rounds answers; of a request that still runs, what there is."""
    return {
        "id": job.id,
        "object": "request.rounds",
        "created": job.created,
        "model": job.model,
        "choices": [
            {
                "index": index,
                "finish_reason": choice.last and choice.last.finish_reason,
                "rounds": [round_shown(delta, texts) for delta in choice.rounds],
            }
            for index, choice in enumerate(job.choices)
        ],
    }


def round_shown(delta: OutputDelta, texts: TokenTexts) -> dict[str, Any]:
    explained = delta.round
    assert isinstance(explained, ExplainedRound)

    def tokens(ids: Iterable[int]) -> list[dict[str, Any]]:
        return [{"id": token, "text": texts[token][0]} for token in ids]

    committed = tokens(delta.token_ids)
    for entry, kind in zip(committed, delta.kinds, strict=True):
        entry["kind"] = kind
    return {
        **asdict(explained.record),
        "drafted_tokens": tokens(explained.drafted),
        "verified_tokens": tokens(explained.verified),
        "forced_places": list(explained.forced),
        "committed_tokens": committed,
    }
