"""Counts rounds and times requests, for the engine's statistics and the requests' own."""

from __future__ import annotations

import time
from collections.abc import Sequence

from paceline.core import OutputDelta, Request, RequestMetrics, TokenKind
from paceline.engine.config import EngineStats
from paceline.engine.scheduler import Scheduled


def count_admission(stats: EngineStats, request: Request) -> None:
    stats.prompt_tokens += request.prompt_len
    stats.prefix_queries += request.prompt_len
    stats.prefix_hits += request.cached_tokens


def count_round(stats: EngineStats, entry: Scheduled, delta: OutputDelta) -> None:
    """Tokens that a grammar forced say nothing of the drafter: they are counted apart."""
    request, kinds = entry.request, delta.kinds
    drafted = len(entry.draft) - len(entry.forced)
    accepted, forced = kinds.count(TokenKind.ACCEPTED), kinds.count(TokenKind.FORCED)
    request.stats.record(drafted, accepted, entry.part)
    request.stats.forced_tokens += forced
    stats.generation_tokens += len(kinds)
    stats.forced_tokens += forced
    if drafted:
        stats.spec_drafts += 1
        stats.spec_draft_tokens += drafted
        stats.spec_accepted_tokens += accepted
        _count_positions(stats.spec_draft_tokens_per_pos, drafted)
        _count_positions(stats.spec_accepted_per_pos, accepted)


def count_step(
    scheduled: Sequence[Scheduled], rounds: Sequence[Scheduled], deltas: Sequence[OutputDelta]
) -> dict[str, int]:
    """What a step that is over was about. `rounds` are the entries that got a token, with their
    `deltas`. `prompt_rows` are of prompts, the last chunk of each included; `outputs` are rows
    whose logits were wanted; `seen` counts the tokens whose keys and values were read, its own
    rows' included."""
    decoded = [
        entry
        for entry, delta in zip(rounds, deltas, strict=True)
        if delta.completion_tokens > len(delta.token_ids)
    ]
    return {
        "requests": len(scheduled),
        "rows": sum(entry.rows for entry in scheduled),
        "prompt_rows": sum(e.rows for e in scheduled) - sum(e.rows for e in decoded),
        "outputs": sum(1 + len(entry.draft) for entry in rounds),
        "drafted": sum(len(entry.draft) for entry in scheduled),
        "committed": sum(len(delta.token_ids) for delta in deltas),
        "seen": sum(entry.start + entry.rows for entry in scheduled),
    }


def _count_positions(counts: list[int], length: int) -> None:
    counts.extend([0] * (length - len(counts)))
    for position in range(length):
        counts[position] += 1


def times(request: Request) -> RequestMetrics:
    end = request.finished or time.monotonic()
    scheduled = request.first_scheduled or end
    first = request.first_token or end
    count = request.output_len
    return RequestMetrics(
        queue=scheduled - request.arrival,
        ttft=first - request.arrival,
        tpot=(end - first) / (count - 1) if count > 1 else None,
        total=end - request.arrival,
        held_back=request.held_back,
    )
