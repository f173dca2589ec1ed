"""Curves, optima, maps and fronts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.core import InvalidRequest
from paceline.roofline.cost import (
    Deployment,
    Options,
    Workload,
    free_drafts,
    share_of_step,
    speedup_curve,
)
from paceline.roofline.device import hardware
from tests.roofline.golden import Geometric, model, optimum

H100 = hardware("H100-SXM")
MTP = (share_of_step(0.1), Geometric(0.75))


def on_h100(name: str, options: Options | None = None) -> Deployment:
    return Deployment(model(name), H100, options or Options())


def test_the_curve_starts_at_plain_decoding() -> None:
    load = Workload(4, 1, 2048)
    first = speedup_curve(on_h100("Qwen3-8B"), *MTP, load)[0]
    step = on_h100("Qwen3-8B").forward_time(load).total
    assert (first.draft_length, first.speedup, first.acceptance_length) == (0, 1, 1)
    assert first.tokens_per_second_per_request == pytest.approx(1 / step)
    assert first.tokens_per_second_per_device == pytest.approx(4 / step)


def test_below_the_break_even_length_a_draft_is_slower() -> None:
    for row in speedup_curve(on_h100("Qwen3-8B"), *MTP, Workload(256, 1, 2048)):
        assert row.speedup == pytest.approx(row.acceptance_length / row.break_even_length)
        assert row.tpot == pytest.approx(row.step_seconds / row.acceptance_length)


def test_free_drafts_of_a_dense_model_bring_their_acceptance_length() -> None:
    rows = speedup_curve(on_h100("Meta-Llama-3.1-70B"), free_drafts(), Geometric(1.0), Workload())
    assert rows[8].speedup == pytest.approx(9, rel=0.01)


def test_of_equals_the_shorter_draft_is_the_optimum() -> None:
    never = speedup_curve(on_h100("Qwen3-8B"), free_drafts(), Geometric(0.0), Workload(1, 1, 0))
    assert optimum(never).draft_length == 0


def test_devices_share_the_throughput() -> None:
    load, two = Workload(8, 1, 2048), Options(tensor_parallel=2)
    row = speedup_curve(on_h100("Qwen3-8B", two), *MTP, load)[3]
    assert row.tokens_per_second_per_device == pytest.approx(
        8 * row.tokens_per_second_per_request / 2
    )


def test_a_longer_draft_than_the_drafter_has_is_refused() -> None:
    short = replace(share_of_step(0.1, per_block=8), max_draft=7)
    assert len(speedup_curve(on_h100("Qwen3-8B"), short, Geometric(0.8), Workload())) == 8
    with pytest.raises(InvalidRequest, match="draft_length"):
        speedup_curve(on_h100("Qwen3-8B"), short, Geometric(0.8), Workload(), max_draft=8)


def test_hybrids_keep_their_speedup_at_long_contexts() -> None:
    def best(name: str, context: int) -> float:
        load = Workload(32, 1, context)
        return optimum(speedup_curve(on_h100(name), *MTP, load)).speedup

    assert best("Qwen3.5-27B", 131072) > 0.95 * best("Qwen3.5-27B", 4096)
