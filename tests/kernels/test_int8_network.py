"""NativeNetwork in int8 against the torch network in int8, and its rows' bits in any company."""

from __future__ import annotations

import pytest
import torch

from paceline.models.native_network import NativeNetwork
from paceline.models.network import TorchNetwork
from paceline.models.quantized import INT8, LINEARS, UNQUANTIZED, Recipe

from .tiny import CONFIGS, LENGTH, Sequences, bf16_weights, ids_of

RECIPES = {"all": INT8, **{name: Recipe("int8", frozenset([name])) for name in LINEARS[:-1]}}


def native(name: str, recipe: Recipe = INT8) -> NativeNetwork:
    return NativeNetwork(CONFIGS[name], bf16_weights(CONFIGS[name]), LENGTH, recipe)


def twin(name: str, recipe: Recipe = INT8) -> TorchNetwork:
    config = CONFIGS[name]
    return TorchNetwork(config, bf16_weights(config), "cpu", torch.float32, LENGTH, recipe)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_the_int8_twin(kernel_path: str, name: str) -> None:
    """Nearer to it than int8 is to float32: what differs is rounding to bf16, not to int8."""
    parts = [(0, 0, ids_of(300)), (1, 0, ids_of(40, seed=1))]
    logits = Sequences(native(name), 2, 512).run(*parts)
    same = Sequences(twin(name), 2, 512).run(*parts)
    exact = Sequences(twin(name, UNQUANTIZED), 2, 512).run(*parts)
    error, cost = (logits - same).abs(), (same - exact).abs()
    assert error.mean() < 0.03 * same.std()
    assert cost.mean() < 0.06 * exact.std()


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_layer_alone(kernel_path: str, recipe: str) -> None:
    ids = ids_of(120)
    logits = Sequences(native("llama-biases", RECIPES[recipe]), 1, 128).run((0, 0, ids))
    same = Sequences(twin("llama-biases", RECIPES[recipe]), 1, 128).run((0, 0, ids))
    assert (logits - same).abs().mean() < 0.025 * same.std()
    plain = Sequences(native("llama-biases", UNQUANTIZED), 1, 128).run((0, 0, ids))
    assert not torch.equal(logits, plain), "nothing was quantised"


@pytest.mark.parametrize("name", CONFIGS)
def test_any_number_of_rows_at_once(kernel_path: str, name: str) -> None:
    network, ids = native(name), ids_of(300)
    whole = Sequences(network, 1, 300).run((0, 0, ids))
    sequences, start = Sequences(network, 1, 300), 0
    for size in [*range(1, 65), 97]:
        part = sequences.run((0, start, ids[start : start + size]))
        assert torch.equal(part, whole[start : start + len(part)]), f"{size} rows at {start}"
        start = (start + size) % 201


def test_a_tied_head_keeps_its_embedding_and_is_counted() -> None:
    plain, quantised = native("llama", UNQUANTIZED), native("llama")
    config = CONFIGS["llama"]
    ids = torch.tensor([0, 17, config.vocab_size - 1])
    for rows in ("embedding_rows", "head_rows"):
        assert torch.equal(getattr(quantised, rows)(ids), getattr(plain, rows)(ids))
    assert quantised.streamed_bytes < 0.66 * plain.streamed_bytes  # padding is large here
    embedding = config.vocab_size * config.hidden_size * 2
    held = quantised.weight_bytes - quantised.streamed_bytes
    assert held > plain.weight_bytes - plain.streamed_bytes + embedding


def test_an_untied_head_is_told_as_it_is_used() -> None:
    plain, quantised = native("llama-biases", UNQUANTIZED), native("llama-biases")
    ids = torch.tensor([3, 198])
    ours, theirs = quantised.head_rows(ids).float(), plain.head_rows(ids).float()
    assert not torch.equal(ours, theirs)
    assert (ours - theirs).norm() < 0.02 * theirs.norm()
