"""Step times over a grid: every point once, at the context that its requests really had."""

from __future__ import annotations

import pytest

from paceline.bench.steps.grid import StepGrid, as_json, engine_config, measure_steps, prompts
from paceline.bench.steps.groups import Steady, StepGroup, TimedStep
from paceline.bench.steps.machine import forward_rate, this_machine
from paceline.core import InvalidRequest
from paceline.engine.build import build_engine
from paceline.roofline.device import Hardware
from tests.engine.tiny import tiny_config, tiny_model

GRID = StepGrid(batches=(1, 3), rows=(1, 2, 5), contexts=(20, 60), rounds=2)


def test_every_point_is_timed_with_the_rows_and_the_context_that_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = engine_config(GRID, tiny_config(), model="tiny", threads=1)
    engine = build_engine(config, tiny_model("bfloat16"))
    seen: list[tuple[int, int]] = []
    work = engine.runner.forward

    def watched(scheduled: list, taps: tuple[int, ...], *, logits: bool) -> object:
        seen.append((len(scheduled), sum(entry.rows for entry in scheduled)))
        return work(scheduled, taps, logits=logits)

    steps: list[TimedStep] = []
    step = Steady.step

    def counted(self: Steady, group: StepGroup) -> TimedStep:
        seen.clear()
        steps.append(step(self, group))
        rows = group.requests[0].max_draft_len + 1
        assert seen == [(len(group.requests), rows * len(group.requests))]
        return steps[-1]

    monkeypatch.setattr(engine.runner, "forward", watched)
    monkeypatch.setattr(Steady, "step", counted)
    points = measure_steps(engine, GRID)
    assert sorted((p.batch, p.rows) for p in points) == sorted(
        (batch, rows) for batch in (1, 3) for rows in (1, 2, 5) for _ in range(2)
    )
    assert all(set(step.committed) == {1} for step in steps)  # nothing is accepted
    for point in points:
        assert min(abs(point.context - context) for context in (20, 60)) <= 16
    assert not engine.has_work
    engine.check_integrity()
    device = Hardware(name="x", memory_bandwidth=1e9, peak={"bf16": 1e9}, memory=1e9)
    written = as_json(engine, device, points)
    assert written["lossless"] is False and len(written["points"]) == 12


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"batches": ()}, "batches"),
        ({"batches": (0,)}, "batches"),
        ({"rows": (66,)}, "rows"),
        ({"contexts": (0,)}, "contexts"),
        ({"rounds": 0}, "rounds"),
        ({"batches": (600,)}, "batches"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_by_name(changes: dict, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        StepGrid(**changes)
    assert refused.value.field == field


def test_prompts_are_all_different_and_a_longer_one_goes_on_where_the_shorter_ends() -> None:
    short, long = prompts(1000, 3, 10), prompts(1000, 3, 30)
    assert [text[:10] for text in long] == short
    assert len({tuple(text) for text in short}) == 3


def test_this_machine_is_a_device_of_the_roofline() -> None:
    engine = build_engine(
        engine_config(GRID, tiny_config(), model="tiny", threads=1), tiny_model("bfloat16")
    )
    rate = forward_rate(engine)
    device = this_machine("cpu", engine)
    assert device.name == "this-machine" and "measured on" in device.source
    assert device.memory_bandwidth > 1e8
    assert rate > 1e6
    assert device.peak_of("bf16") >= device.peak_of("fp32") > 1e8
    assert device.memory > 2**28
    assert Hardware.read(
        {name: getattr(device, name) for name in ("name", "memory_bandwidth", "peak", "memory")}
    )


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="device: got 'tpu'"):
        this_machine("tpu")
