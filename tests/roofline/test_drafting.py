"""What drafts cost, from fractions and from drafters' own configs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.core import InvalidRequest, ModelError
from paceline.roofline.cost import (
    Deployment,
    DrafterCost,
    Workload,
    free_drafts,
    look_up,
    share_of_step,
)
from paceline.roofline.cost.drafters import block, eagle, mtp, small_model
from paceline.roofline.cost.grid import Grid
from paceline.roofline.device import Calibration, hardware
from tests.roofline.golden import model

B200, LOAD = hardware("B200"), Workload(1, 1, 0)
DFLASH: dict[str, Any] = {  # of Qwen3.6-35B-A3B: 473,956,352 weights beside the target's head
    "model_type": "qwen3",
    "num_hidden_layers": 8,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 248320,
    "block_size": 16,
    "num_target_layers": 40,
    "dflash_config": {"target_layer_ids": [1, 10, 19, 28, 37]},
}
EAGLE: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
}


def time(drafter: DrafterCost, length: int, name: str, load: Workload = LOAD) -> float:
    return drafter.time(length, Deployment(model(name), B200), load)


def test_a_fraction_is_paid_per_pass() -> None:
    step = Deployment(model("Qwen3-8B"), B200).forward_time(LOAD).total
    once, blocks = share_of_step(0.1), share_of_step(0.1, per_block=8)
    assert [time(once, length, "Qwen3-8B") for length in (0, 1, 3)] == pytest.approx(
        [0, 0.1 * step, 0.3 * step]
    )
    assert [time(blocks, length, "Qwen3-8B") for length in (8, 9)] == pytest.approx(
        [0.1 * step, 0.2 * step]
    )


def test_no_draft_and_an_ideal_one_cost_nothing() -> None:
    assert time(free_drafts(), 16, "Qwen3-8B") == 0
    assert time(look_up(1e-4), 0, "Qwen3-8B") == 0
    assert time(look_up(1e-4), 5, "Qwen3-8B", Workload(4, 1, 0)) == pytest.approx(4e-4)


def test_an_mtp_layer_reads_itself_and_the_head_once_per_token() -> None:
    drafter = mtp(model("Qwen3.5-35B-A3B"))
    assert time(drafter, 1, "Qwen3.5-35B-A3B") == pytest.approx(141e-6, rel=0.05)
    assert time(drafter, 4, "Qwen3.5-35B-A3B") == pytest.approx(4 * 143e-6, rel=0.05)


def test_a_block_drafter_reads_itself_and_the_head_once_per_block() -> None:
    drafter = block(DFLASH, model("Qwen3.5-35B-A3B"))
    times = [time(drafter, length, "Qwen3.5-35B-A3B") for length in (1, 7, 15)]
    assert times == pytest.approx([245.7e-6] * 3, rel=0.01)


def test_a_block_cannot_draft_more_than_its_masks() -> None:
    drafter = block(DFLASH, model("Qwen3.5-35B-A3B"))
    assert drafter.max_draft == 15
    with pytest.raises(InvalidRequest, match="draft_length: got 16; expected at most 15"):
        time(drafter, 16, "Qwen3.5-35B-A3B")


def test_a_drafter_for_another_target_is_refused() -> None:
    with pytest.raises(ModelError, match="hidden_size is 2048"):
        block(DFLASH, model("Qwen3-8B"))
    with pytest.raises(ModelError, match="num_target_layers is 40"):
        block(DFLASH, model("Qwen3-30B-A3B"))
    with pytest.raises(ModelError, match="dflash_config"):
        block({**DFLASH, "dflash_config": None}, model("Qwen3.5-35B-A3B"))
    with pytest.raises(InvalidRequest, match="mtp"):
        mtp(model("Qwen3-8B"))


def test_an_eagle_head_has_its_own_small_vocabulary() -> None:
    target = model("Meta-Llama-3.1-8B")
    drafter = eagle(EAGLE, target)
    layer = 4096 * 128 * (2 * 40 + 32 + 16) + 3 * 4096 * 14336
    per_token = 2 * (layer + 32000 * 4096)
    fusion = 2 * 3 * 4096 * 4096
    found = time(drafter, 3, "Meta-Llama-3.1-8B")
    assert found == pytest.approx((3 * per_token + fusion) / 8e12, rel=0.02)


def test_a_small_model_costs_its_own_steps() -> None:
    drafter = small_model("Qwen3-0.6B")
    own = Deployment(model("Qwen3-0.6B"), B200).forward_time(LOAD).total
    assert time(drafter, 5, "Qwen3-8B") == pytest.approx(5 * own)


def test_passes_pay_for_their_layers_but_not_for_another_step() -> None:
    slow = Calibration(step_overhead=1.0, layer_overhead=1e-2)
    drafter = small_model("Qwen3-0.6B")
    found = drafter.time(2, Deployment(model("Qwen3-8B"), B200), LOAD, slow)
    assert found == pytest.approx(2 * 28 * 1e-2, rel=0.01)


def test_the_grid_prices_every_drafter_as_the_plain_sum_does() -> None:
    hybrid, dense = model("Qwen3.5-35B-A3B"), model("Meta-Llama-3.1-8B")
    calibration = Calibration(memory_efficiency=0.7, step_overhead=1e-3, layer_overhead=1e-5)
    loads = (Workload(1, 1, 512), Workload(7, 1, 4096))
    for target, drafter in (
        (dense, free_drafts()),
        (dense, share_of_step(0.2, per_block=3)),
        (dense, look_up(1e-4)),
        (dense, eagle(EAGLE, dense)),
        (dense, small_model("Qwen3-0.6B")),
        (hybrid, mtp(hybrid)),
        (hybrid, block(DFLASH, hybrid)),
    ):
        deployment = Deployment(target, B200)
        grid = Grid(deployment, loads, {"slow": calibration})
        plain = {"slow": grid.forwards([1])["slow"]}
        fast = grid.drafts(drafter, 6, plain)["slow"]
        slow = [
            [drafter.time(n, deployment, load, calibration) for n in range(7)] for load in loads
        ]
        assert fast == pytest.approx(np.array(slow), rel=1e-12), drafter.name
