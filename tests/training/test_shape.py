"""The shape of a drafter: as wide as its target, and as its weights decide."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.models.any_target import TargetShape
from paceline.models.config import Attention
from paceline.models.dflash.config import read_dflash_config
from paceline.training.config import TrainConfig
from paceline.training.shape import check_fit, drafter_json, first_weights, reshaped
from tests.engine.tiny import tiny_config
from tests.models.dflash.tiny import config_json
from tests.training.runs import SMALL, alike


def test_a_new_drafter_has_the_width_of_its_target():
    target = TargetShape.of(tiny_config())
    config = TrainConfig(**SMALL, taps=1, window=32, generation="dflash2", selector_rank=12)
    made = drafter_json(config, target, 250)
    assert made["sliding_window"] == 32 and set(made["layer_types"]) == {"sliding_attention"}
    assert made["dflash_config"]["selector_rank"] == 12
    shape = read_dflash_config(made)
    assert shape.layers.hidden_size == target.hidden_size and shape.block_size == 8
    check_fit(shape, target, eos_ids=(3,), seen=(4, 5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 128, "intermediate_size": 96}, "init: got 'hidden_size 128'"),
        ({"vocab_size": 300}, "init: got 'vocab_size 300'; expected a drafter for vocab_size 256"),
        ({"target_layers": 9}, "init: got 'num_target_layers 9'"),
        ({"taps": (1,)}, r"init: got 'target_layer_ids \(1,\)'; expected layers 0 to 0"),
    ],
    ids=str,
)
def test_a_drafter_for_another_target_is_refused(changes, message):
    shape = read_dflash_config(config_json(**changes))
    with pytest.raises(InvalidRequest, match=message):
        check_fit(shape, TargetShape.of(tiny_config()), eos_ids=(3,), seen=())


def checkpoint_of(json_: dict[str, Any]) -> Any:
    shape = read_dflash_config(json_)
    return SimpleNamespace(config=shape, config_json=json_, path=SimpleNamespace(name="begin"))


def test_a_drafter_gone_on_from_may_get_another_block_and_nothing_else():
    checkpoint = checkpoint_of(config_json(second=True))
    checkpoint.config_json["dflash_config"]["block_size"] = 6
    made = reshaped(TrainConfig(**SMALL, block=9), checkpoint)
    assert made["block_size"] == 9 and "block_size" not in made["dflash_config"]
    assert reshaped(TrainConfig(**SMALL), checkpoint)["dflash_config"]["block_size"] == 6
    for changes, message in (
        ({"taps": 2}, "taps: got 2; expected 1, as the drafter begin has it"),
        ({"mask_token": 7}, "mask_token: got 7; expected 250"),
        ({"generation": "dflash"}, "generation: got 'dflash'; expected dflash2"),
        ({"selector_rank": 9}, "selector_rank: got 9; expected 12"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            reshaped(TrainConfig(**SMALL, **changes), checkpoint)


def test_a_drafter_that_sees_everything_may_get_a_window():
    for causal in (False, True):
        checkpoint = checkpoint_of(config_json(is_causal=causal))
        made = read_dflash_config(reshaped(TrainConfig(**SMALL, window=8), checkpoint))
        assert set(made.attention) == {Attention(8, causal)} and made.window == 8
        before = read_dflash_config(reshaped(TrainConfig(**SMALL), checkpoint))
        assert before.window is None


@pytest.mark.parametrize(
    ("sliding", "window"), [("ss", "24"), ("sf", "none: some of its layers have one")]
)
def test_the_window_of_a_drafter_stays(sliding, window):
    checkpoint = checkpoint_of(config_json(sliding=sliding))
    with pytest.raises(InvalidRequest, match=f"window: got 8; expected {window}"):
        reshaped(TrainConfig(**SMALL, window=8), checkpoint)


def test_drafters_that_are_made_at_once_have_the_weights_of_their_seeds():
    shape = read_dflash_config(config_json())
    seeds = [seed for seed in range(4) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda seed: first_weights(seed, shape, None).state_dict(), seeds))
    firsts = made[::8]
    assert all(alike(weights, firsts[seed]) for seed, weights in zip(seeds, made, strict=True))
    assert not alike(firsts[0], firsts[1])
