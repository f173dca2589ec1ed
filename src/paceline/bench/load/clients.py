"""Many clients at once against a running server: the load generator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from paceline.bench.load.answers import DraftCounts, MeasuredAnswer
from paceline.bench.load.paired import Ask
from paceline.bench.prompts import BenchPrompt


@dataclass(slots=True)
class Load:
    """Answers of one or more load runs, in the order of the requests, and the seconds they took."""

    answers: list[MeasuredAnswer] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Load) -> None:
        self.answers += other.answers
        self.seconds += other.seconds

    @property
    def tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers)

    @property
    def throughput(self) -> float:
        """Output tokens per second, all clients together."""
        return self.tokens / self.seconds

    @property
    def ttft(self) -> float:
        return median(answer.ttft for answer in self.answers)

    @property
    def tpot(self) -> float:
        return median(answer.tpot() for answer in self.answers if len(answer.token_ids) > 1)

    @property
    def acceptance_length(self) -> float | None:
        """AL over all drafted rounds of the run; None where nothing was drafted."""
        return DraftCounts.total(answer.drafted for answer in self.answers).acceptance_length


async def run_load(
    prompts: Sequence[BenchPrompt], ask: Ask, *, requests: int, concurrency: int, speculative: Any
) -> Load:
    """Keep `concurrency` requests in flight until `requests` are answered, and start again with the
    first prompt after the last."""
    answers: dict[int, MeasuredAnswer] = {}
    waiting = iter(range(requests))

    async def client() -> None:
        for index in waiting:
            answers[index] = await ask(prompts[index % len(prompts)], speculative)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, requests)):
            group.create_task(client())
    seconds = time.perf_counter() - started
    return Load([answers[index] for index in range(requests)], seconds)


async def compare_load(
    prompts: Sequence[BenchPrompt], ask: Ask, *, runs: int, concurrency: int, speculative: Any
) -> tuple[Load, Load]:
    """Load the server without and with speculation, in turns, alternating which goes first.

    Each run has two requests per client, or one per prompt if that is more.
    """
    off, on = Load(), Load()
    load = {"requests": max(2 * concurrency, len(prompts)), "concurrency": concurrency}
    for run in range(runs):
        turn = [(off, "off"), (on, speculative)]
        for total, setting in turn if run % 2 == 0 else reversed(turn):
            total.add(await run_load(prompts, ask, speculative=setting, **load))
    return off, on


def same_text(first: Load, second: Load) -> bool:
    """Tell whether the two runs gave every request the same token ids."""
    pairs = zip(first.answers, second.answers, strict=True)
    return all(answer.token_ids == other.token_ids for answer, other in pairs)
