"""The words and numbers of a profile, from spans made by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.spans import Recording, Span
from paceline.profiling.gaps import ADVICE, Bandwidth, Roof, bounds_of, rows_of
from paceline.profiling.report import (
    as_json,
    described,
    roof_line,
    sentence,
    served_lines,
    steps_line,
    table,
)
from paceline.profiling.trace import trace
from paceline.profiling.tree import Steps, gather, totals
from tests.profiling.recorded import step
from tests.profiling.test_gaps import ROOF, TARGET, spans


def lane(name: str, recorded: list[Span]) -> Any:
    class Lane:
        def __len__(self) -> int:
            return len(recorded)

        def spans(self) -> list[Span]:
            return recorded

    made = Lane()
    made.name = name  # type: ignore[attr-defined]
    return made


def pass_of(*lanes: Any) -> Any:
    return SimpleNamespace(recording=SimpleNamespace(lanes=list(lanes)))


@pytest.fixture
def steps() -> Steps:
    return gather(spans())


def test_steps_are_described_by_their_means(steps: Steps) -> None:
    assert described(steps) == (
        "2 decode steps, each of 4.00 rows of 1.00 requests with 3.00 tokens drafted and 2.00 "
        "committed"
    )
    one: list[Span] = []
    step(one, 0, {}, {"qkv": 5})
    assert described(gather(one)).startswith("1 decode step, ")


def test_prompt_steps_are_left_out_and_said(steps: Steps) -> None:
    line = steps_line(steps)
    assert "left out: 1 step with prompts" in line
    assert "0.001 ms per committed token" in line  # 3640 ns for 4 tokens


def test_a_roof_without_a_peak_says_so() -> None:
    assert "not measured for int8" in roof_line(ROOF)
    measured = roof_line(Roof(Bandwidth(10**9, 0.1, 5), 2e12, 2))
    assert "100.0 ms for the weights at 10.0 GB/s (median of 5 read loops" in measured
    assert measured.endswith("operations of a large product: 2000 billion/s")


def test_the_largest_gap_comes_with_its_advice(steps: Steps) -> None:
    bounds = bounds_of(steps, TARGET, None, ROOF)  # type: ignore[arg-type]
    bounds["step", "forward", "attention"] = 0.0
    line = sentence(rows_of(steps, bounds))
    assert line.startswith("Largest gap to the roofline: forward > attention, ")
    assert line.endswith(f"{ADVICE['attention']}.")


def test_a_gap_that_nothing_is_known_of_has_no_advice() -> None:
    made: list[Span] = []
    step(made, 0, {"something new": 900}, {"qkv": 5})
    line = sentence(rows_of(gather(made), {}))
    assert "something new" in line and ": " not in line.split("(takes")[1]


def test_the_table_and_the_json_have_the_same_lines(steps: Steps) -> None:
    rows = rows_of(steps, bounds_of(steps, TARGET, None, ROOF))  # type: ignore[arg-type]
    told = json.loads(json.dumps(as_json("AR", steps, rows, ROOF)))
    assert table("AR", steps, rows).row_count == len(rows) == len(told["spans"])
    assert (told["pass"], told["decode_steps"], told["prompt_steps"]) == ("AR", 2, 1)
    assert told["ms_per_committed_token"] == pytest.approx(3640e-6 / 4)
    assert told["per_step"]["seen"] == 200
    assert told["read_loop"] == {"bytes": 1000, "median_ms": 1e-3, "reads": 3}
    assert told["largest_gap"]["path"][0] == "step"
    leaves = [span for span in told["spans"] if span["leaf"]]
    assert sum(span["ms"] for span in leaves) == pytest.approx(told["step_ms"]["mean"])


def test_lanes_of_streams_are_added_up_per_step_of_the_engine() -> None:
    engine: list[Span] = []
    for start in (0, 1000):
        step(engine, start, {"draft": 100}, {"qkv": 300})
    engine.append(Span("deliver", 2000, 2050, -1))
    streams = [[Span("format", 0, 10, -1), Span("send", 10, 40, -1)], [Span("format", 5, 25, -1)]]
    served = pass_of(lane("engine", engine), *(lane("stream", each) for each in streams))
    lines = {line["span"]: line for line in served_lines(served)}
    assert list(lines) == ["step", "deliver", "format", "send"]
    assert lines["step"]["per_step"] == 1 and lines["format"]["per_step"] == 1
    assert lines["format"]["ms_per_step"] == pytest.approx(15e-6)
    assert (lines["deliver"]["thread"], lines["send"]["thread"]) == ("engine", "event loop")


def test_only_outermost_spans_are_totalled() -> None:
    inner = [Span("outer", 0, 100, -1), Span("inner", 10, 20, 0)]
    assert {name: (node.ns, node.spans) for name, node in totals([inner, inner]).items()} == {
        "outer": (200, 2)
    }


# -- the trace -------------------------------------------------------------------------------------


def recorded(*lanes: Any) -> Recording:
    return SimpleNamespace(lanes=list(lanes))  # type: ignore[return-value]


def test_the_first_span_of_all_passes_begins_at_zero() -> None:
    early, late = [Span("deliver", 4000, 5000, -1)], [Span("deliver", 9000, 9500, -1)]
    made = trace({"a": recorded(lane("x", late)), "b": recorded(lane("y", early))}, {})
    events = [event for event in made["traceEvents"] if event["ph"] == "X"]
    assert [(event["ts"], event["dur"]) for event in events] == [(5.0, 0.5), (0.0, 1.0)]
    assert len({event["tid"] for event in events}) == 2


def test_counts_of_a_step_are_drawn_as_counters() -> None:
    made: list[Span] = []
    step(made, 0, {}, {"qkv": 5}, rows=7)
    events = trace({"a": recorded(lane("engine", made))}, {"model": "m"})["traceEvents"]
    counters = {event["name"]: event["args"] for event in events if event["ph"] == "C"}
    assert counters == {
        "rows": {"rows": 7},
        "drafted": {"drafted": 3},
        "committed": {"committed": 2},
    }


def test_empty_lanes_and_passes_are_left_out() -> None:
    made = trace({"a": recorded(lane("engine", [])), "b": recorded()}, {"model": "m"})
    assert [event for event in made["traceEvents"] if event["ph"] != "M"] == []
    assert made["otherData"] == {"model": "m"}
