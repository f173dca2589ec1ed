"""The served pass: a real server, real clients in another process, over a tiny model."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from paceline.core import PacelineError, SamplingParams
from paceline.core.spans import OFF
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.profiling import served
from paceline.profiling.run import ProfilePlan
from paceline.profiling.trace import trace
from paceline.profiling.tree import gather
from tests.engine.tiny import tiny_model
from tests.profiling.test_run import check_nesting

PARAMS = SamplingParams(max_tokens=12, temperature=0, seed=1)
PROMPTS = [list(b"abcabcabc"), list(b"the same, the same, the ")]


def engine(**options: Any) -> Engine:
    fixed = {"dtype": "float32", "backend": "torch", "threads": 1, "draft_policy": "fixed"}
    config = EngineConfig(model="tiny", drafter="ngram", **{**fixed, **options})
    return build_engine(config, tiny_model("float32"))


def test_format_and_send_are_recorded_beside_the_steps() -> None:
    profiled = engine()
    one = served.record_served(profiled, PROMPTS, ProfilePlan(PARAMS, batch=2, steps=10))
    own, *streams = one.recording.lanes
    steps = gather(own.spans())
    assert steps.decode_steps + steps.prompt_steps >= 10
    assert {span.name for lane in streams for span in lane.spans()} == {"format", "send"}
    assert len(streams) >= 2, "two clients, a lane for each of their answers"
    assert profiled.spans is OFF and not profiled.has_work
    profiled.check_integrity()
    threads: dict[int, list[Any]] = {}
    for event in trace({one.name: one.recording}, {})["traceEvents"]:
        if event["ph"] == "X":
            threads.setdefault(event["tid"], []).append(event)
    for events in threads.values():
        check_nesting(events, top=frozenset({"step", "deliver", "format", "send"}))


def test_clients_that_are_refused_end_the_pass_with_the_reason() -> None:
    profiled = engine(max_model_len=64)
    with pytest.raises(PacelineError, match="400 from the server"):
        served.record_served(profiled, [[1] * 200], ProfilePlan(PARAMS, steps=5))
    assert not profiled.has_work


def test_clients_do_not_need_torch() -> None:
    """It would take them seconds to start, and memory."""
    code = "import sys, paceline.profiling.client; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
