"""Random weights that are drawn when asked for, and shares of a network's forward."""

from __future__ import annotations

import pytest
import torch

from paceline.models.mocked import id_tokenizer, kv_bytes
from paceline.models.networks import nearest_share
from paceline.models.tensors import expected_tensors
from paceline.models.weights import RandomTensors, stored_bytes
from tests.engine.tiny import tiny_config


def test_equal_seeds_draw_equal_tensors_whatever_was_drawn_before() -> None:
    shapes = expected_tensors(tiny_config())
    first, again = (
        RandomTensors(shapes, torch.bfloat16, 1),
        RandomTensors(shapes, torch.bfloat16, 1),
    )
    names = list(shapes)
    drawn = {name: first[name] for name in names}
    for name in reversed(names):
        assert torch.equal(again[name], drawn[name])
        assert drawn[name].shape == shapes[name] and drawn[name].dtype == torch.bfloat16
    other = RandomTensors(shapes, torch.bfloat16, 2)
    assert not torch.equal(other[names[0]], drawn[names[0]])


def test_bytes_are_known_before_anything_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"a.weight": (10, 20), "norm.weight": (20,)}
    monkeypatch.setattr(torch, "randn", None)
    assert stored_bytes(RandomTensors(shapes, torch.bfloat16)) == 2 * 220


def test_activations_keep_their_size_at_any_depth() -> None:
    weight = RandomTensors({"w": (400, 900)}, torch.float32)["w"]
    assert float((weight @ torch.ones(900)).std()) == pytest.approx(1, rel=0.15)


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.3, 0.5, 0.9, 1.0])
def test_no_other_share_is_nearer(fraction: float) -> None:
    config = tiny_config(num_layers=8, vocab_size=2000)
    share = nearest_share(config, fraction)
    assert 1 <= share.layers <= 8
    whole = nearest_share(config, 1.0)
    assert (whole.layers, whole.head, whole.fraction) == (8, True, 1.0)
    layer = nearest_share(config, 0.0).fraction
    assert abs(share.fraction - fraction) <= layer


def test_kv_is_counted_in_whole_blocks() -> None:
    config = tiny_config(num_layers=2, num_kv_heads=2, head_dim=16)
    row = 2 * 2 * 2 * 16 * 2  # keys and values, layers, heads, numbers, bytes
    assert kv_bytes(config, "bfloat16", 1) == kv_bytes(config, "bfloat16", 16) == 16 * row
    assert kv_bytes(config, "float32", 17) == 32 * row * 2


def test_every_id_can_be_printed() -> None:
    tokenizer = id_tokenizer(20010)
    assert len(tokenizer) == 20010
    assert tokenizer.backend_tokenizer.decode([0, 1]) == "一丁"
    assert tokenizer.backend_tokenizer.decode([20005]) == "<20005>"
