"""A fault plan: an error at a chosen place and moment of a step, and what must hold after it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Self

from paceline.core import FinishReason, Grammar, SamplingParams, SpeculativeParams
from paceline.core.spans import OFF, Spans
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from tests.engine.tiny import tiny_model

SOURCE = Path(__file__).parents[2] / "src" / "paceline"
TRACED = tuple(str(SOURCE / room) for room in ("engine", "drafters"))
PROMPTS = [
    [65, 66, 67, 65, 66, 67, 65, 66],
    list(range(70, 110)),
    [65, 66, 67, 65, 66, 67, 65, 66, 90],
    [80, 81] * 30,
    [99],
    [65, 66, 67, 65, 66, 67, 65, 66],
    list(range(40, 75)) * 2,
    [50, 51, 52],
]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=1, seed=1, max_tokens=20, ignore_eos=True, top_p=0.9),
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, repetition_penalty=1.3),
    SamplingParams(temperature=0.7, seed=2, max_tokens=16, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0, max_tokens=30, logit_bias={65: 4.0, 66: -8.0}, min_tokens=5),
    SamplingParams(temperature=1, seed=3, max_tokens=12, grammar=Grammar("regex", "[a-f]{10}")),
    SamplingParams(temperature=0, max_tokens=18, ignore_eos=True, stop=("zq",)),
    SamplingParams(temperature=1, seed=4, max_tokens=20, ignore_eos=True),
]


class InjectedError(RuntimeError):
    """What the fault plan raises."""


class FaultySpans(Spans):
    """Raise InjectedError when span `name` opens for the `at`-th time; counts every span."""

    def __init__(self, name: str = "", at: int = 0) -> None:
        self._name, self._at = name, at
        self.opened: dict[str, int] = {}

    def __call__(self, name: str) -> Self:
        count = self.opened[name] = self.opened.get(name, 0) + 1
        if name == self._name and count == self._at:
            raise InjectedError(f"span {name}, time {self._at}")
        return self


@contextmanager
def error_at_line(at: int) -> Iterator[Callable[[], int]]:
    """Raise InjectedError before the `at`-th line that the engine's own thread runs in the rooms
    `engine` and `drafters`; 0 only counts. Yields a function that tells the lines so far."""
    lines, before = 0, sys.gettrace()  # coverage.py's, or None

    def in_frame(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == at:
                sys.settrace(before)
                raise InjectedError(f"{frame.f_code.co_qualname}, line {frame.f_lineno}")
        return in_frame

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        return in_frame if frame.f_code.co_filename.startswith(TRACED) else None

    sys.settrace(on_call)
    try:
        yield lambda: lines
    finally:
        sys.settrace(before)


@dataclass
class Outcome:
    """What became of the requests of one run, by request id."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, FinishReason] = field(default_factory=dict)
    errors: dict[str, str | None] = field(default_factory=dict)

    @property
    def failed(self) -> set[str]:
        return {name for name, why in self.reasons.items() if why is FinishReason.ERROR}


@cache
def faulty_engine() -> Engine:
    """One engine for all plans: what a fault leaves behind would spoil the next run."""
    config = EngineConfig(
        model="tiny", drafter=("auto", "ngram"), dtype="float32", threads=1, max_num_seqs=4,
        token_budget=48, kv_memory=64 * 1024, max_model_len=128,
    )  # fmt: skip
    return build_engine(config, tiny_model("float32"))


def run_all(engine: Engine, spans: Spans = OFF, steps: int = 2000) -> Outcome:
    """Run PROMPTS with PARAMS, the second half joining later; with `spans` from the start on."""
    engine.record(spans)
    outcome, waiting = Outcome(), list(zip(PROMPTS, PARAMS, strict=True))
    for index, pair in enumerate(waiting):
        outcome.tokens[f"r{index}#0"] = []
        if index < len(waiting) // 2:
            _submit(engine, outcome, index, *pair)
    for step in range(steps):
        if step == 6:
            for index in range(len(waiting) // 2, len(waiting)):
                _submit(engine, outcome, index, *waiting[index])
        if step > 6 and not engine.has_work:
            break
        _take(outcome, engine.step())
    engine.record(OFF)
    assert not engine.has_work, "a request neither ends nor goes on"
    return outcome


def _submit(
    engine: Engine, outcome: Outcome, index: int, prompt: list[int], params: SamplingParams
) -> None:
    drafter = SpeculativeParams(drafter=("auto", "ngram")[index % 2], policy="fixed:4")
    requests = engine.make_requests(prompt, params, drafter, request_id=f"r{index}")
    _take(outcome, engine.add(requests))


def _take(outcome: Outcome, deltas: list[Any]) -> None:
    for delta in deltas:
        assert delta.request_id not in outcome.reasons, "a delta after the last one"
        outcome.tokens[delta.request_id] += delta.token_ids
        if delta.finished:
            outcome.reasons[delta.request_id] = delta.finish_reason
            outcome.errors[delta.request_id] = delta.error


def check(engine: Engine, outcome: Outcome, reference: Outcome) -> None:
    """What must hold after any fault: every request ended, those that did not fail said the same
    as without the fault, and all memory is back."""
    assert outcome.reasons.keys() == reference.reasons.keys()
    for name, said in outcome.tokens.items():
        if name in outcome.failed:
            assert outcome.errors[name], name
            assert said == reference.tokens[name][: len(said)], name
        else:
            assert said == reference.tokens[name], name
            assert outcome.reasons[name] == reference.reasons[name], name
    engine.check_integrity()
    assert engine.cache.usage == 0
    assert not engine.scheduler.running and not engine.scheduler.waiting
