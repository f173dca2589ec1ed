"""The paired comparison: the same prompts without and with speculation, in turns.

Off and on are run next to each other, and which comes first alternates, so that a machine that
slows down or speeds up does so for both.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from paceline.bench.load.answers import MeasuredAnswer
from paceline.bench.prompts import BenchPrompt
from paceline.dataset.loops import loop_start
from paceline.roofline.timing import ARRIVALS

Ask = Callable[[BenchPrompt, Any], Awaitable[MeasuredAnswer]]
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
        lengths = [a.acceptance_length for a in self.on]
        drafted = [length for length in lengths if length is not None]
        return median(drafted) if drafted else None


async def compare(
    prompts: Sequence[BenchPrompt],
    ask: Ask,
    *,
    runs: int,
    speculative: Any = None,
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
            for setting in _order(run + index, speculative):
                answer = await ask(pair.prompt, setting)
                (pair.off if setting == "off" else pair.on).append(answer)
            progress(pair, run)
    return pairs


def _order(turn: int, speculative: Any) -> Iterator[Any]:
    settings = ("off", speculative)
    yield from settings if turn % 2 == 0 else reversed(settings)


def write_arrivals(path: Path, pairs: Sequence[Pair]) -> None:
    """Write the arrival of each token of every answer as JSONL, which the page can play again.

    A line is one answer: `speculation` off or on, `run`, and `arrivals_ms`, in which tokens of one
    burst share a time.
    """
    lines = [json.dumps(line) for pair in pairs for line in _arrivals(pair)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _arrivals(pair: Pair) -> Iterator[dict[str, Any]]:
    for speculation, answers in (("off", pair.off), ("on", pair.on)):
        for run, answer in enumerate(answers):
            yield {
                "format": ARRIVALS,
                "prompt": pair.prompt.name,
                "speculation": speculation,
                "run": run,
                "arrivals_ms": [round(1e3 * (at - answer.started), 3) for at in answer.arrivals],
                "draft_rounds": answer.drafted.rounds,
                "accepted": answer.drafted.accepted,
            }
