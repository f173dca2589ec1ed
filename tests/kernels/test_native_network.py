"""NativeNetwork against the plain torch network in float32, in every option."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch

from paceline.core import ModelError
from paceline.kernels.packing import HUGE_PAGE, pack, padded, unpack_rows
from paceline.models.native_network import NativeNetwork
from paceline.models.network import TorchNetwork

from .tiny import CONFIGS, LENGTH, Sequences, bf16_weights, ids_of, native_network


def torch_twin(name: str) -> TorchNetwork:
    return TorchNetwork(CONFIGS[name], bf16_weights(CONFIGS[name]), "cpu", torch.float32, LENGTH)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_close_to_float32(kernel_path: str, name: str) -> None:
    ids, other = ids_of(300), ids_of(40, seed=1)
    parts = [(0, 0, ids), (1, 0, other)]
    logits = Sequences(native_network(CONFIGS[name]), 2, 512).run(*parts)
    expected = Sequences(torch_twin(name), 2, 512).run(*parts)
    error = (logits - expected).abs()
    assert error.mean() < 0.012 * expected.std()
    assert error.max() < 0.12 * expected.std()


def test_argmax_and_features_are_those_of_the_rows(kernel_path: str) -> None:
    network, twin = native_network(CONFIGS["qwen2"]), torch_twin("qwen2")
    outputs = []
    for each in (network, twin):
        batch = Sequences(each, 1, 64).batch((0, 0, ids_of(33)))
        batch.logit_rows = np.array([3, 32, 0], dtype=np.int32)
        outputs.append(each.forward(batch, feature_layers=(1, 0)))
    ours, theirs = outputs
    assert ours.logits.shape == (3, 199)
    assert torch.equal(ours.argmax, ours.logits.argmax(-1))
    assert (ours.logits - theirs.logits).abs().max() < 0.12 * theirs.logits.std()
    assert ours.features is not None and theirs.features is not None
    assert ours.features.shape == theirs.features.shape
    assert (ours.features.float() - theirs.features).abs().max() < 0.1


def test_no_output_rows_still_writes_kv(native: str) -> None:
    network, ids = native_network(CONFIGS["llama"]), ids_of(21)
    sequences = Sequences(network, 1, 64)
    batch = sequences.batch((0, 0, ids[:20]))
    batch.logit_rows = batch.logit_rows[:0]
    assert network.forward(batch).logits.shape == (0, 199)
    last = sequences.run((0, 20, ids[20:]))
    assert torch.equal(last[0], Sequences(network, 1, 64).run((0, 0, ids))[-1])


def test_no_step_comes_to_a_new_huge_page_in_every_layer(native: str) -> None:
    """To take one can last 2 ms: together that was 60 ms of SmolLM2, every 2,600 tokens."""
    network = native_network(CONFIGS["llama"])
    layers = CONFIGS["llama"].num_layers
    network.allocate_kv(HUGE_PAGE)  # blocks: every layer takes whole huge pages
    starts = sorted(network.structure.layer[i].kv % HUGE_PAGE for i in range(layers))
    gaps = [after - before for before, after in pairwise([*starts, starts[0] + HUGE_PAGE])]
    assert min(gaps) > HUGE_PAGE / layers / 2


def test_without_logits_the_rest_is_the_same(native: str) -> None:
    network, ids = native_network(CONFIGS["llama"]), ids_of(20)
    batch = Sequences(network, 1, 64).batch((0, 0, ids))
    whole = network.forward(batch)
    argmax, logits = whole.argmax.clone(), whole.logits.clone()
    whole.logits.zero_()
    batch.logits = False
    part = network.forward(batch)
    assert torch.equal(part.argmax, argmax) and bool(part.finite.all())
    assert part.logits.shape == (0, 199) and not whole.logits.any(), "nothing was written"
    batch.logits = True
    assert torch.equal(network.forward(batch).logits, logits)


def test_what_lies_in_unused_slots_does_not_matter(native: str) -> None:
    network, ids = native_network(CONFIGS["llama"]), ids_of(20)
    sequences = Sequences(network, 1, 64)
    clean = sequences.run((0, 0, ids))
    sequences.run((0, 0, ids_of(64, seed=9)))  # a longer draft that was rejected
    assert torch.equal(sequences.run((0, 0, ids)), clean)


def test_weights_are_consumed(native: str) -> None:
    weights = bf16_weights(CONFIGS["llama"])
    NativeNetwork(CONFIGS["llama"], weights, LENGTH)
    assert not weights


def test_misfits_are_refused_by_name(native: str) -> None:
    config = dataclasses.replace(CONFIGS["llama"], head_dim=24)
    with pytest.raises(ModelError, match="head_dim 24"):
        NativeNetwork(config, bf16_weights(config), LENGTH)
    network = native_network(CONFIGS["llama"])
    sequences = Sequences(network, 1, 64)
    with pytest.raises(ValueError, match=f"position {LENGTH}"):
        sequences.run((0, LENGTH, [1]))
    batch = sequences.batch((0, 0, [1, 2]))
    batch.ids = batch.ids.astype(np.int64)
    with pytest.raises(TypeError, match="int64"):
        network.forward(batch)


@pytest.mark.parametrize(("n", "k"), [(16, 32), (1, 2), (40, 70)])
def test_packing_keeps_every_weight(n: int, k: int) -> None:
    weight = torch.randn(n, k).bfloat16()
    packed = torch.empty(padded(n, 32) // 32, padded(k, 32) // 2, 32, dtype=torch.int32)
    pack(weight, packed)
    assert torch.equal(unpack_rows(packed, torch.arange(n), k), weight)
