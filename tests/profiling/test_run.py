"""A profile of the real engine over a tiny model: it changes nothing, and its trace is sound."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from paceline.core import InvalidRequest, SamplingParams, SpeculativeParams
from paceline.core.spans import OFF, Recording, Spans
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.profiling.gaps import bounds_of, rows_of
from paceline.profiling.report import as_json, sentence, table
from paceline.profiling.run import ProfilePlan, drafter_network, record, roof_of
from paceline.profiling.trace import trace
from tests.engine.conftest import make_engine  # noqa: F401
from tests.engine.tiny import EngineFactory, save_tiny

PROMPTS = [list(b"the same words, the same words, the "), list(b"abcabcabcabc")]
GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=24, temperature=1.0, top_k=20, seed=5, ignore_eos=True)


def answers(engine: Engine, params: SamplingParams, spans: Spans) -> dict[str, list[int]]:
    engine.record(spans)
    told: dict[str, list[int]] = {}
    for index, prompt in enumerate(PROMPTS):
        wish, scope = SpeculativeParams(), f"{id(spans)}-{index}".encode()
        engine.add(engine.make_requests(prompt, params, wish, request_id=str(index), salt=scope))
    while engine.has_work:
        for delta in engine.step():
            told.setdefault(delta.request_id, []).extend(delta.token_ids)
    engine.record(OFF)
    return told


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_recording_changes_no_token(make_engine: EngineFactory, params: SamplingParams) -> None:  # noqa: F811
    engine = make_engine("ngram")
    plain = answers(engine, params, OFF)
    lane = Recording().lane("engine")
    assert answers(engine, params, lane) == plain
    recorded = len(lane)
    assert recorded > 0
    assert answers(engine, params, OFF) == plain
    assert len(lane) == recorded, "the recorder went on listening"


@pytest.fixture
def profiled(make_engine: EngineFactory) -> tuple[Engine, list[Any]]:  # noqa: F811
    engine = make_engine("ngram")
    return engine, record(engine, PROMPTS, ProfilePlan(GREEDY, batch=2, steps=12))


def test_both_passes_have_the_steps_that_were_asked_for(profiled: Any) -> None:
    engine, passes = profiled
    assert [one.name for one in passes] == ["AR", "speculative"]
    plain, speculative = (one.steps() for one in passes)
    assert plain.decode_steps == speculative.decode_steps == 12
    assert plain.total("drafted") == 0 and plain.mean("committed") == plain.mean("requests")
    assert speculative.total("drafted") > 0
    assert plain.prompt_steps > 0
    assert all(len(one.reads) == 2 for one in passes), "a read loop every eight steps"
    assert not engine.has_work
    engine.check_integrity()


def test_lines_sum_to_the_wall_time(profiled: Any) -> None:
    engine, passes = profiled
    for one in passes:
        steps = one.steps()
        roof = roof_of(engine, one, peak=1e15)
        bounds = bounds_of(steps, engine.runner.network, drafter_network(engine), roof)
        rows = rows_of(steps, bounds)
        wall = sum(steps.durations) / steps.decode_steps / 1e9
        assert rows[0].seconds == pytest.approx(wall)
        assert sum(row.seconds for row in rows if row.leaf) == pytest.approx(wall)
        assert all(row.seconds >= 0 for row in rows)
        by_path = {row.path: row for row in rows}
        inner = [row for row in rows if row.path[:2] == ("step", "forward") and row.leaf]
        forward = by_path["step", "forward"].seconds
        assert sum(row.seconds for row in inner) == pytest.approx(forward)
        weights = roof.bandwidth.time(engine.runner.network.streamed_bytes)
        assert by_path["step", "forward"].bound > weights
        assert ("Largest gap" in sentence(rows)) == (rows[0].gap > 0)
        assert table(one.name, steps, rows).row_count == len(rows)
        told = json.loads(json.dumps(as_json(one.name, steps, rows, roof)))
        assert len(told["spans"]) == len(rows)


def test_the_trace_is_sound(profiled: Any) -> None:
    _, passes = profiled
    written = json.dumps(trace({one.name: one.recording for one in passes}, {"model": "tiny"}))
    made = json.loads(written)
    assert made["otherData"] == {"model": "tiny"}
    events = made["traceEvents"]
    names = {(e["name"], e["args"]["name"]) for e in events if e["ph"] == "M"}
    assert ("process_name", "speculative") in names and ("thread_name", "engine") in names
    counters = [event for event in events if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"rows", "drafted", "committed"}
    assert all(event["args"][event["name"]] >= 0 for event in counters)
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    assert len(threads) == 2
    assert len({thread for _, thread in threads}) == 2, "viewers take equal numbers for one thread"
    for spans in threads.values():
        check_nesting(spans)


def check_nesting(events: list[dict[str, Any]], top: frozenset[str] = frozenset({"step"})) -> None:
    """Every span is inside one of `top` or is one, and siblings do not overlap: to the ns."""
    open_ends: list[tuple[int, str]] = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        start, end = round(1e3 * event["ts"]), round(1e3 * (event["ts"] + event["dur"]))
        assert end >= start >= 0
        while open_ends and open_ends[-1][0] <= start and open_ends[-1][0] < end:
            open_ends.pop()
        if open_ends:
            assert end <= open_ends[-1][0], f"{event['name']} outlasts {open_ends[-1][1]}"
        else:
            assert event["name"] in top
        open_ends.append((end, event["name"]))


def test_without_a_drafter_there_is_one_pass(make_engine: EngineFactory) -> None:  # noqa: F811
    engine = make_engine(None)
    assert [one.name for one in record(engine, PROMPTS, ProfilePlan(GREEDY, steps=3))] == ["AR"]


def test_a_drafters_network_is_profiled_too(make_engine: EngineFactory, tmp_path: Any) -> None:  # noqa: F811
    engine = make_engine(f"small=draft_model:{save_tiny(tmp_path)}")
    passes = record(engine, PROMPTS, ProfilePlan(GREEDY, steps=6))
    paths = {row.path for row in rows_of(passes[1].steps(), {})}
    assert ("step", "draft", "propose", "qkv") in paths
    assert drafter_network(engine) is not None
    assert passes[0].steps().total("drafted") == 0


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("steps", {"steps": 0}),
        ("batch", {"batch": 0}),
        ("max_tokens", {"params": SamplingParams(max_tokens=1)}),
        ("speculative", {"speculative": "sometimes"}),
    ],
)
def test_a_plan_without_sense_is_refused(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ProfilePlan(**{"params": GREEDY, **options})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "config"), [("batch", {"max_num_seqs": 4}), ("device", {"device": "cuda"})]
)
def test_a_plan_that_the_engine_cannot_follow_is_refused(field: str, config: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ProfilePlan(GREEDY, batch=5).check(EngineConfig(**config))
    assert refused.value.field == field
