"""Measure the share of prompts in steps: throughput, TTFT and the longest steps.

python benchmarks/prompt_share.py MODEL [--at-once 8 32] [--stretches 1.5 2 4 8 100] [--rounds 5]

Requests come as others end, so that always as many run. Each setting has a window of a few seconds
on the same engine, in turns; `default` is what the engine does by itself.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness import machine, table
from prompts import encoded

from paceline import LLM, SamplingParams
from paceline.bench.turns import in_turns, ratio_interval
from paceline.core import Request
from paceline.engine.engine import Engine
from paceline.engine.prompt_share import PromptRows, PromptShare
from paceline.engine.step_cost import StepCost

TOKENS = 64


@dataclass
class Window:
    """The tokens, times to first token and steps of an engine during a few seconds."""

    seconds: float = 0.0
    tokens: int = 0
    ttfts: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        return self.tokens / self.seconds

    @property
    def ttft(self) -> float:
        return statistics.median(self.ttfts)

    @property
    def longest(self) -> float:
        """The 99th percentile of the steps."""
        return sorted(self.steps)[int(0.99 * (len(self.steps) - 1))]


@dataclass(frozen=True)
class FixedStretch(PromptShare):
    """The rule before: a step with prompts takes up to `max_stretch` times as long as one without
    prompts and drafts."""

    def rows(
        self,
        cost: StepCost,
        decode_rows: int,
        decoding: int,
        prompts: Sequence[Request],
        most: int,
        back: float = 0.0,
    ) -> PromptRows:
        more = (self.max_stretch - 1) * cost(decoding, decoding, back)
        return PromptRows(cost, decoding, most, more, more, requests=decoding, back=back)


class ClosedLoop:
    """Keeps `at_once` requests running on an engine."""

    def __init__(self, engine: Engine, prompts: Iterator[list[int]], at_once: int) -> None:
        self._engine, self._prompts, self._at_once = engine, prompts, at_once
        self._added: dict[str, float] = {}
        self._names = itertools.count()
        self._params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)

    def run(self, seconds: float) -> Window:
        """Serve for so long, and on to the first request that gets its first token."""
        window, engine = Window(), self._engine
        start = last = time.perf_counter()
        while last - start < seconds or not window.ttfts:
            while len(self._added) < self._at_once:
                (request,) = engine.make_requests(
                    next(self._prompts), self._params, request_id=str(next(self._names))
                )
                engine.add([request])
                self._added[request.id] = time.perf_counter()
            deltas = engine.step()
            now = time.perf_counter()
            window.steps.append(now - last)
            last = now
            for delta in deltas:
                window.tokens += len(delta.token_ids)
                if delta.completion_tokens == len(delta.token_ids):
                    window.ttfts.append(now - self._added[delta.request_id])
                if delta.finished:
                    del self._added[delta.request_id]
        window.seconds = last - start
        return window

    def end(self) -> None:
        for name in self._added:
            self._engine.abort(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--at-once", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--stretches", type=float, nargs="+", default=[1.5, 2, 4, 8, 100])
    parser.add_argument("--drafters", nargs="+", default=["auto", "none"])
    parser.add_argument("--prompts", nargs="+", default=["fresh", "repeated"])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    for drafter, kind in itertools.product(args.drafters, args.prompts):
        spec = None if drafter == "none" else drafter
        llm = LLM(args.model, spec, prefix_cache=kind == "repeated")
        texts = encoded(llm.tokenizer, "chat") + encoded(llm.tokenizer, "code")
        for at_once in args.at_once:
            rows += compare(llm.engine, texts, at_once, (drafter, kind, at_once), args)
    table(f"prompts beside decoding requests, {args.model}, {TOKENS} tokens each ({machine()})",
          ["drafter", "prompts", "at once", "stretch", "tok/s ÷ 1.5's", "95%", "TTFT p50 ÷ 1.5's",
           "95%", "step p99 ÷ 1.5's", "tok/s", "TTFT p50, ms"], rows)  # fmt: skip


def compare(
    engine: Engine, texts: list[list[int]], at_once: int, name: tuple[object, ...],
    args: argparse.Namespace,
) -> list[tuple[object, ...]]:  # fmt: skip
    default = engine.scheduler.share
    loop = ClosedLoop(engine, itertools.cycle(texts), at_once)

    def window(stretch: float | None) -> Window:
        engine.scheduler.share = default if stretch is None else FixedStretch(stretch)
        loop.run(1.0)  # what the setting before has left behind is not counted
        return loop.run(args.seconds)

    sides = {"default": lambda: window(None)}
    for stretch in args.stretches:
        sides[f"{stretch:g}"] = lambda stretch=stretch: window(stretch)
    windows = in_turns(sides, args.rounds)
    loop.end()
    base, rows = windows["1.5"], []
    for setting, measured in windows.items():
        rates, first, steps = (
            ratio_interval([getattr(w, what) for w in measured], [getattr(w, what) for w in base])
            for what in ("throughput", "ttft", "longest")
        )
        row = (
            *name, setting, f"{rates[0]:.2f}", f"{rates[1]:.2f}–{rates[2]:.2f}", f"{first[0]:.2f}",
            f"{first[1]:.2f}–{first[2]:.2f}", f"{steps[0]:.2f}",
            f"{statistics.median(w.throughput for w in measured):.0f}",
            f"{1e3 * statistics.median(w.ttft for w in measured):.0f}",
        )  # fmt: skip
        print(*row, flush=True)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
