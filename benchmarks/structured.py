"""Structured output: does every answer validate, does speculation change it, what do masks cost.

    python benchmarks/structured.py answers MODEL    counts over real schemas and prompts
    python benchmarks/structured.py cost MODEL       masks beside steps; wants an idle machine

Needs the package jsonschema. Downloads BFCL and check-jsonschema from PyPI on first use.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
from harness import machine, table
from schemas import Case, cases, fetch

from paceline.core import FinishReason, Grammar, InvalidRequest, SamplingParams
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.llm import LLM

MAX_TOKENS = 160
TOGETHER = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["answers", "cost"])
    parser.add_argument("model")
    parser.add_argument("--drafter", default="suffix")
    parser.add_argument("--bfcl", type=int, default=500)
    parser.add_argument("--vendored", type=int, default=150)
    parser.add_argument("--cache", type=Path, default=Path("build/schemas"))
    args = parser.parse_args()
    chosen = cases(fetch(args.cache), args.bfcl, args.vendored)
    print(machine())
    (answers if args.what == "answers" else cost)(args, chosen)


def answers(args: argparse.Namespace, chosen: list[Case]) -> None:
    llm = LLM(args.model, args.drafter)
    compiler = llm.engine.grammars.compiler
    kept: list[tuple[Case, Grammar]] = []
    refused: Counter[tuple[str, str]] = Counter()
    slowest = 0.0
    for case in chosen:
        grammar = Grammar("json_schema", json.dumps(case.schema), "schema")
        start = time.perf_counter()
        try:
            compiler.compile(grammar)
            kept.append((case, grammar))
        except InvalidRequest as error:
            refused[case.source, error.field.rsplit(".", 1)[-1]] += 1
        slowest = max(slowest, time.perf_counter() - start)
    print(f"{len(chosen)} schemas, slowest compiled or refused in {slowest:.2f} s")
    rows, differ = [], 0
    for temperature in (0.0, 1.0):
        off = _run(llm, kept, temperature, "off", TOGETHER)
        on = _run(llm, kept, temperature, None, TOGETHER)
        alone = _run(llm, kept[::10], temperature, None, 1)
        differ += sum(a.token_ids != b.token_ids for a, b in zip(off, on, strict=True))
        differ += sum(a.token_ids != b.token_ids for a, b in zip(off[::10], alone, strict=True))
        for source in dict.fromkeys(case.source for case in chosen):
            rows.append(_counts(source, temperature, kept, on))
    header = ["schemas", "T", "answers", "stop and valid", "stop and invalid", "length",
              "other", "forced tokens"]  # fmt: skip
    table(f"Answers under a schema, {args.model}, {args.drafter}", header, rows)
    names = [[source, keyword, count] for (source, keyword), count in refused.most_common()]
    table("Refused with 400, by the keyword named", ["schemas", "keyword", "count"], names)
    print(f"\nstreams that differ from speculation off: {differ}; states left: "
          f"{len(llm.engine.grammars.held)}")  # fmt: skip


def _run(llm: LLM, kept: list[Any], temperature: float, wish: Any, together: int) -> list[Any]:
    results: list[Any] = []
    for start in range(0, len(kept), together):
        part = kept[start : start + together]
        talks = [[{"role": "user", "content": case.prompt[:1500]}] for case, _ in part]
        params = [
            SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature, seed=7, grammar=grammar)
            for _, grammar in part
        ]
        results += [result.choices[0] for result in llm.chat(talks, params, wish)]
    return results


def _counts(source: str, temperature: float, kept: list[Any], made: list[Any]) -> list[object]:
    ends: Counter[str] = Counter()
    tokens = forced = 0
    for (case, _), choice in zip(kept, made, strict=True):
        if case.source != source:
            continue
        ends[_judged(case, choice)] += 1
        tokens += len(choice.token_ids)
        forced += choice.stats.forced_tokens
    kinds = ("valid", "invalid", "length", "other")
    share = f"{forced / max(1, tokens):.0%}"
    return [source, temperature, sum(ends.values()), *(ends[kind] for kind in kinds), share]


def _judged(case: Case, choice: Any) -> str:
    if choice.finish_reason is FinishReason.LENGTH:
        return "length"
    if choice.finish_reason is not FinishReason.STOP:
        return "other"
    try:
        validator = jsonschema.validators.validator_for(case.schema)
        validator(case.schema).validate(json.loads(choice.text))
    except (ValueError, jsonschema.ValidationError) as error:
        print("invalid:", case.name, choice.text[:200], str(error)[:200])
        return "invalid"
    return "valid"


def cost(args: argparse.Namespace, chosen: list[Case]) -> None:
    """Time on the engine's thread that grammars take, beside the steps it is part of."""
    rows = []
    for together in (1, 8):
        for drafter in (None, args.drafter):
            rows.append(_cost(args.model, drafter, together, chosen))
    header = ["requests", "drafter", "steps", "step ms", "grammar ms", "share", "mask thread ms"]
    table(f"What masks cost, {args.model}", header, rows)


def _cost(model: str, drafter: str | None, together: int, chosen: list[Case]) -> list[object]:
    engine = build_engine(EngineConfig(model=model, drafter=drafter))
    clock = Clock(engine)
    steps, shares, grammar_ms = [], [], []
    waiting = [case for case in chosen if case.source == "BFCL"][: 8 * together]
    for index, case in enumerate(waiting):
        params = SamplingParams(
            max_tokens=64, temperature=1.0, seed=index,
            grammar=Grammar("json_schema", json.dumps(case.schema)),
        )  # fmt: skip
        ids = engine.tokenizer(case.prompt[:400])["input_ids"]
        engine.add(engine.make_requests(ids, params, request_id=f"r{index}"))
        if (index + 1) % together and index + 1 < len(waiting):
            continue
        while engine.has_work:
            before = clock.seconds
            start = time.perf_counter()
            engine.step()
            took, spent = time.perf_counter() - start, clock.seconds - before
            if all(request.decoding for request in engine.scheduler.running):
                steps.append(1e3 * took)
                grammar_ms.append(1e3 * spent)
                shares.append(spent / took)
    total = sum(grammar_ms) / sum(steps)
    thread = 1e3 * clock.thread_seconds / clock.builds
    return [together, drafter or "off", len(steps), statistics.median(steps),
            statistics.median(grammar_ms), f"{total:.1%}", thread]  # fmt: skip


class Clock:
    """Sums up what the engine's thread spends on grammars: walking, fitting, waiting for masks."""

    def __init__(self, engine: Engine) -> None:
        self.seconds = self.thread_seconds = 0.0
        self.builds = 0
        grammars, opened = engine.grammars, engine.grammars.open
        build, fill = grammars.build, grammars._fill

        def watched_open(request: Any) -> Any:
            state = opened(request)
            for name in ("advance", "forced", "fit"):
                setattr(state, name, partial(self._timed, getattr(state, name)))
            return state

        def watched_build(scheduled: Any) -> Any:
            future = self._timed(build, scheduled)
            if future is not None:
                self.builds += 1
                future.result = partial(self._timed, future.result)
            return future

        def watched_fill(entries: Any) -> Any:
            start = time.perf_counter()
            try:
                return fill(entries)
            finally:
                self.thread_seconds += time.perf_counter() - start

        grammars.open = watched_open  # type: ignore[method-assign]
        grammars.build = watched_build  # type: ignore[method-assign]
        grammars._fill = watched_fill  # type: ignore[method-assign]

    def _timed(self, call: Callable[..., Any], *args: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(*args)
        finally:
            self.seconds += time.perf_counter() - start


if __name__ == "__main__":
    main()
