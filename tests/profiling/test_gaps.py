"""What is added up, what bounds it, and which gap is called the largest."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.core import KVSpec
from paceline.core.spans import TOP, Span
from paceline.profiling.gaps import ADVICE, Bandwidth, Roof, bounds_of, largest_gap, rows_of
from paceline.profiling.report import sentence
from paceline.profiling.tree import gather
from tests.profiling.recorded import step

BANDWIDTH = Bandwidth(streamed=1000, seconds=1e-6, reads=3)  # 1 ns a byte
ROOF = Roof(BANDWIDTH, peak=None, itemsize=2)
TARGET = SimpleNamespace(
    streamed_parts={"qkv": 400, "head": 600}, kv_spec=KVSpec(1, 1, 1, 1), streamed_bytes=1000
)


def spans() -> list[Span]:
    """Two decode steps and one with a prompt between them."""
    made: list[Span] = []
    step(made, 0, {"draft": 50}, {"qkv": 500, "attention": 300, "head": 700}, rest=40)
    step(made, 9_000, {"draft": 9}, {"qkv": 9, "head": 9}, rest=9, prompt_rows=5)
    made.append(Span("step", 10_000, 10_009, TOP))  # had nothing to do
    step(made, 20_000, {"draft": 70}, {"qkv": 500, "attention": 500, "head": 900},
         rest=60, forward_rest=20, seen=300)  # fmt: skip
    return made


def test_only_decode_steps_are_added_up() -> None:
    steps = gather(spans())
    assert (steps.decode_steps, steps.prompt_steps, steps.prompt_ns) == (2, 1, 36)
    assert steps.durations == [1590, 2050]
    assert steps.mean("rows") == 4 and steps.mean("seen") == 200


def test_the_lines_sum_to_the_step_with_a_remainder_that_is_shown() -> None:
    rows = rows_of(gather(spans()), {})
    by_name = {row.name: row.seconds * 1e9 for row in rows}
    assert by_name["step"] == pytest.approx((1590 + 2050) / 2)
    assert by_name["unaccounted"] == pytest.approx(50)
    assert by_name["rest of forward"] == pytest.approx(10)
    assert sum(row.seconds for row in rows if row.leaf) == pytest.approx(rows[0].seconds)


def test_bounds_are_weights_and_keys_and_values() -> None:
    steps = gather(spans())
    bounds = bounds_of(steps, TARGET, None, ROOF)  # type: ignore[arg-type]
    rows = {row.name: row for row in rows_of(steps, bounds)}
    assert rows["qkv"].bound == pytest.approx(400e-9)
    # Keys and values of 200 tokens on average, a byte each.
    assert rows["attention"].bound == pytest.approx(2 * 200e-9)
    assert rows["forward"].bound == rows["step"].bound == pytest.approx(1400e-9)
    assert rows["draft"].bound is None
    assert rows["draft"].gap == rows["draft"].seconds
    assert rows["step"].gap == pytest.approx(sum(row.gap for row in rows.values() if row.leaf))


def test_many_rows_are_bound_by_arithmetic() -> None:
    made: list[Span] = []
    step(made, 0, {}, {"qkv": 900, "head": 900}, rows=1, outputs=1)
    step(made, 5_000, {}, {"qkv": 900, "head": 900}, rows=10, outputs=4)
    # 2 bytes a weight, two operations for each and row: one row takes a quarter of the reading.
    roof = Roof(BANDWIDTH, peak=4e9, itemsize=2)
    bounds = bounds_of(gather(made), TARGET, None, roof)  # type: ignore[arg-type]
    assert bounds["step", "forward", "qkv"] == pytest.approx((400e-9 + 2.5 * 400e-9) / 2)
    assert bounds["step", "forward", "head"] == pytest.approx(600e-9)


def test_a_drafters_forwards_have_bounds_of_their_own() -> None:
    made: list[Span] = []
    for start in (0, 10_000):
        step(made, start, {"draft": 1000}, {"qkv": 500, "head": 700})
    draft = len(made)
    step(made, 20_000, {"draft": 1000}, {"qkv": 500, "head": 700})
    made.append(Span("propose", 20_000, 20_900, draft + 1))
    made.append(Span("head", 20_100, 20_800, len(made) - 1))
    steps = gather(made)
    drafter = SimpleNamespace(streamed_parts={"head": 300, "qkv": 30})
    bounds = bounds_of(steps, TARGET, drafter, ROOF)  # type: ignore[arg-type]
    # One forward of the drafter in three steps.
    assert bounds["step", "draft", "propose", "head"] == pytest.approx(100e-9)
    rows = rows_of(steps, bounds)
    assert next(row for row in rows if row.name == "propose").bound == pytest.approx(110e-9)


def test_the_largest_gap_is_a_leaf_and_counts_from_its_bound() -> None:
    steps = gather(spans())
    bounds = bounds_of(steps, TARGET, None, ROOF)  # type: ignore[arg-type]
    # head is longest with 800 ns, 600 of them its bound; attention is bound to none of its 400.
    bounds["step", "forward", "attention"] = 0.0
    worst = largest_gap(rows_of(steps, bounds))
    assert worst.path == ("step", "forward", "attention")
    assert worst.gap == pytest.approx(400e-9)


def test_a_bound_that_cannot_be_is_not_called_a_gap() -> None:
    steps = gather(spans())
    slow = Roof(Bandwidth(streamed=1000, seconds=1e-5, reads=3), peak=None, itemsize=2)
    rows = rows_of(steps, bounds_of(steps, TARGET, None, slow))  # type: ignore[arg-type]
    assert "quiet machine" in sentence(rows) and "Largest gap" not in sentence(rows)


def test_advice_is_for_lines_that_there_are() -> None:
    known = {"embed", "norm", "qkv", "rotary", "attention", "o", "gate_up", "down", "taps", "head"}
    known |= {"schedule", "draft", "look up", "catch up", "propose", "forward", "pack", "grammar"}
    known |= {"sample", "verify", "commit", "detokenise", "observe", "settle", "unaccounted"}
    assert {name.removeprefix("rest of ") for name in ADVICE} <= known
