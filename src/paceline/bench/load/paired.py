"""Speculation off and on in turns: one prompt at a time, or many clients at once.

Off and on are run next to each other, and which comes first alternates, so that a machine that
slows down or speeds up does so for both.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

from paceline.bench.load.answers import DraftCounts, MeasuredAnswer
from paceline.bench.prompts import BenchPrompt
from paceline.dataset.loops import loop_start
from paceline.roofline.timing import ARRIVALS

Side = TypeVar("Side")
Ask = Callable[[BenchPrompt, object], Awaitable[MeasuredAnswer]]
"""Answers a prompt with the given `speculative` value ("off", None or an object)."""


@dataclass(slots=True)
class Pair:
    """All runs of one prompt, `off` without and `on` with speculation."""

    prompt: BenchPrompt
    off: list[MeasuredAnswer] = field(default_factory=list)
    on: list[MeasuredAnswer] = field(default_factory=list)

    @property
    def same_text(self) -> bool:
        """True where every run gave the same token ids and ended for the same reason."""
        first = self.off[0]
        return all(
            answer.token_ids == first.token_ids and answer.finish_reason == first.finish_reason
            for answer in (*self.off, *self.on)
        )

    @property
    def counted_tokens(self) -> int:
        """Tokens that TPOT counts: those before the text starts to loop, if it does."""
        ids = self.off[0].token_ids
        start = loop_start(ids)
        return len(ids) if start is None else start

    @property
    def loops(self) -> bool:
        return self.counted_tokens < len(self.off[0].token_ids)

    @property
    def ttft(self) -> tuple[float, float]:
        """Median seconds to the first token, without and with speculation."""
        return median(a.ttft for a in self.off), median(a.ttft for a in self.on)

    @property
    def tpot(self) -> tuple[float, float]:
        """Median seconds per token after the first, without and with speculation."""
        count = self.counted_tokens
        return median(a.tpot(count) for a in self.off), median(a.tpot(count) for a in self.on)

    @property
    def speedup(self) -> float:
        """Median over the paired runs of TPOT without ÷ TPOT with speculation."""
        count = self.counted_tokens
        runs = zip(self.off, self.on, strict=True)
        return median(off.tpot(count) / on.tpot(count) for off, on in runs)

    @property
    def acceptance_length(self) -> float | None:
        """Median AL of the runs; None where nothing was drafted."""
        lengths = [a.acceptance_length for a in self.on if a.acceptance_length is not None]
        return median(lengths) if lengths else None


async def compare(
    prompts: Sequence[BenchPrompt],
    ask: Ask,
    *,
    runs: int,
    speculative: object = None,
    seconds: float = math.inf,
    progress: Callable[[Pair, int], None] = lambda pair, run: None,
) -> list[Pair]:
    """Ask every prompt `runs` times with speculation off and on, alternating which goes first.

    Fewer times, but at least once, when the next run over all prompts would likely end after
    `seconds`. `progress(pair, run)` is called after each pair of answers.
    """
    pairs = [Pair(prompt) for prompt in prompts]
    started = time.perf_counter()
    for run in range(runs):
        elapsed = time.perf_counter() - started
        if run and elapsed * (run + 1) / run > seconds:
            break
        for index, pair in enumerate(pairs):
            for answers, setting in _order(run + index, pair.off, pair.on, speculative):
                answers.append(await ask(pair.prompt, setting))
            progress(pair, run)
    return pairs


def _order(turn: int, off: Side, on: Side, speculative: object) -> list[tuple[Side, object]]:
    """Return both sides with their `speculative` values; the one that goes first alternates."""
    sides: list[tuple[Side, object]] = [(off, "off"), (on, speculative)]
    return sides if turn % 2 == 0 else sides[::-1]


# -- many clients at once -------------------------------------------------------------------------


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
    prompts: Sequence[BenchPrompt], ask: Ask, speculative: object, requests: int, concurrency: int
) -> Load:
    """Keep `concurrency` requests in flight, prompt after prompt, until `requests` are answered."""
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
    prompts: Sequence[BenchPrompt], ask: Ask, *, runs: int, concurrency: int, speculative: object
) -> tuple[Load, Load]:
    """Load the server without and with speculation, in turns, alternating which goes first.

    Each run has two requests per client, or one per prompt if that is more.
    """
    off, on = Load(), Load()
    requests = max(2 * concurrency, len(prompts))
    for run in range(runs):
        for total, setting in _order(run, off, on, speculative):
            total.add(await run_load(prompts, ask, setting, requests, concurrency))
    return off, on


def same_text(first: Load, second: Load) -> bool:
    """Tell whether the two runs gave every request the same token ids."""
    pairs = zip(first.answers, second.answers, strict=True)
    return all(answer.token_ids == other.token_ids for answer, other in pairs)


# -- recorded arrivals ----------------------------------------------------------------------------


def write_arrivals(path: Path, pairs: Sequence[Pair]) -> None:
    """Write the arrival of each token of every answer as JSONL, which the page can play again.

    A line is one answer: `speculation` off or on, `run`, and `arrivals_ms`, in which tokens of one
    burst share a time.
    """
    lines = [
        {
            "format": ARRIVALS,
            "prompt": pair.prompt.name,
            "speculation": speculation,
            "run": run,
            "arrivals_ms": [round(1e3 * (at - answer.started), 3) for at in answer.arrivals],
            "draft_rounds": answer.drafted.rounds,
            "accepted": answer.drafted.accepted,
        }
        for pair in pairs
        for speculation, answers in (("off", pair.off), ("on", pair.on))
        for run, answer in enumerate(answers)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
