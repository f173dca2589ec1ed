"""The engine's counters, and the times of requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core import OutputDelta, Request, RequestMetrics, SpeculationStats
from paceline.engine.baseline import Baseline
from paceline.engine.config import EngineStats
from paceline.engine.kv_cache import KVCache
from paceline.engine.scheduler import Scheduled, Scheduler


@dataclass(slots=True)
class Counters:
    """Counts since the engine's start. They belong to the engine's thread: EngineStats has the
    snapshots that others read."""

    prompt_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    steps: int = 0
    failed_steps: int = 0
    drafter_failures: int = 0
    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    requests_finished: dict[str, int] = field(default_factory=dict)

    def count_admission(self, request: Request) -> None:
        self.prompt_tokens += request.prompt_len
        self.prefix_queries += request.prompt_len
        self.prefix_hits += request.cached_tokens

    def snapshot(self, scheduler: Scheduler, cache: KVCache, baseline: Baseline) -> EngineStats:
        """Return the counts of now, which later steps do not change, and the gauges."""
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_usage=cache.usage,
            kv_blocks_total=cache.num_blocks,
            kv_blocks_free=cache.free_blocks,
            prompt_tokens=self.prompt_tokens,
            prefix_queries=self.prefix_queries,
            prefix_hits=self.prefix_hits,
            preemptions=self.preemptions,
            steps=self.steps,
            failed_steps=self.failed_steps,
            drafter_failures=self.drafter_failures,
            speculation=self.speculation.copy(),
            decode_seconds=baseline.seconds,
            ar_seconds=baseline.ar_seconds,
            speedup_vs_ar=baseline.speedup,
            requests_finished=dict(self.requests_finished),
        )


def count_step(
    scheduled: Sequence[Scheduled], rounds: Sequence[Scheduled], deltas: Sequence[OutputDelta]
) -> dict[str, int]:
    """Describe a step that is over. `rounds` are the entries that got a token, with their `deltas`.

    `prompt_rows` are of prompts, the last chunk of each included; `outputs` are rows whose logits
    were wanted; `seen` counts the tokens whose keys and values were read, those of the step's own
    rows included.
    """
    decoded = [
        entry
        for entry, delta in zip(rounds, deltas, strict=True)
        if delta.completion_tokens > len(delta.token_ids)
    ]
    return {
        "requests": len(scheduled),
        "rows": sum(entry.rows for entry in scheduled),
        "prompt_rows": sum(e.rows for e in scheduled) - sum(e.rows for e in decoded),
        "outputs": sum(entry.outputs for entry in rounds),
        "drafted": sum(len(entry.draft) for entry in scheduled),
        "committed": sum(len(delta.token_ids) for delta in deltas),
        "seen": sum(entry.start + entry.rows for entry in scheduled),
    }


def times(request: Request) -> RequestMetrics:
    """The times of a request that has finished, or finishes now."""
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
