"""Quantised linear layers in plain torch, and what may not be quantised."""

from __future__ import annotations

import pytest
import torch

from paceline.core import InvalidRequest, ModelError
from paceline.kernels import fp8, int8
from paceline.models.dflash.tensors import linear_of
from paceline.models.layers import Linear
from paceline.models.quantized import (
    FP8,
    INT8,
    UNQUANTIZED,
    Fp8Linear,
    Int8Linear,
    Recipe,
    make_linear,
    recipe_of,
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


WEIGHT, BIAS, X = random(48, 96), random(48, seed=1), random(32, 96, seed=2)
KINDS = [pytest.param(Int8Linear, 0.012, id="int8"), pytest.param(Fp8Linear, 0.05, id="fp8")]


@pytest.mark.parametrize(("kind", "error"), KINDS)
def test_products_and_rows_are_near_the_unquantised_ones(kind: type[Linear], error: float) -> None:
    plain, linear = Linear(WEIGHT, BIAS), kind(WEIGHT, BIAS)
    exact, got = plain(X), linear(X).float()
    assert 0 < (got - exact).norm() < error * exact.norm()
    ids = torch.tensor([47, 0, 5])
    rows = linear.rows(ids, torch.float32)
    assert (rows - WEIGHT[ids]).norm() < error * WEIGHT[ids].norm()
    assert linear.bytes == 48 * 96 + 2 * 48 * 4  # a byte each, bias and scales


@pytest.mark.parametrize(("kind", "error"), KINDS)
def test_a_rows_bits_are_its_own(kind: type[Linear], error: float) -> None:
    linear = kind(WEIGHT, BIAS)
    assert torch.equal(linear(X)[7:8].expand(32, -1), linear(X[7:8].expand(32, -1)))


@pytest.mark.parametrize(("kind", "error"), KINDS)
def test_outputs_can_be_cut_and_joined(kind: type[Linear], error: float) -> None:
    linear = kind(WEIGHT, BIAS)
    tail = linear.outputs_from(16)
    assert torch.equal(tail(X), linear(X)[:, 16:])
    joined = linear.outputs_from(16, linear, tail)
    assert torch.equal(joined(X), torch.cat([tail(X), tail(X), linear(X)[:, 32:]], dim=1))


def test_a_recipe_decides_layer_by_layer() -> None:
    recipe = Recipe("int8", frozenset({"down"}))
    assert type(make_linear(recipe, "down", WEIGHT)) is Int8Linear
    assert type(make_linear(recipe, "o", WEIGHT)) is Linear
    assert type(make_linear(FP8, "o", WEIGHT)) is Fp8Linear
    assert type(make_linear(UNQUANTIZED, "o", WEIGHT)) is Linear


def test_a_drafters_tensors_belong_to_their_layers() -> None:
    names = {
        "fc.weight": "context",
        "layers.1.self_attn.k_proj.weight": "qkv",
        "layers.1.self_attn.o_proj.weight": "o",
        "layers.0.mlp.up_proj.weight": "gate_up",
        "layers.0.mlp.down_proj.weight": "down",
        "layers.0.mlp_conv.kernel_projection.weight": "",
        "candidate_selector.hidden_projection.weight": "",
    }
    assert {name: linear_of(name) for name in names} == names


def test_fp8_keeps_small_numbers_beside_large_ones() -> None:
    x = torch.tensor([[1000.0, 1.0, 0.1], [0.0, 0.0, 0.0]])
    small, scales = fp8.quantize_rows(x)
    assert torch.allclose(small.float() * scales[:, None], x, rtol=0.07)
    without_rotation = (x / (x.abs().amax(-1, keepdim=True) / 127)).round()
    assert without_rotation[0, 2] == 0, "int8 alone would lose it"


def test_zeros_and_the_tiniest_rows_give_zeros() -> None:
    x = torch.zeros(2, 96)
    x[1] = 1e-38
    weight = int8.quantize_weight(WEIGHT)
    assert not int8.linear(x, *weight).any()
    assert int8.linear(x * torch.nan, *weight).isnan().all()


def test_what_quantize_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert recipe_of(None, "cuda", "float32") == UNQUANTIZED
    assert recipe_of("int8", "cpu", "float32") == recipe_of("int8", "cpu", "bfloat16") == INT8
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert recipe_of("int8", "cuda", "bfloat16") == FP8
    with pytest.raises(InvalidRequest, match=r"dtype.*float32.*bfloat16"):
        recipe_of("int8", "cuda", "float32")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 6))
    with pytest.raises(InvalidRequest, match=r"quantize.*int8.*8\.9.*8\.6"):
        recipe_of("int8", "cuda", "bfloat16")
    with pytest.raises(InvalidRequest, match=r"quantize.*int4.*int8"):
        recipe_of("int4", "cpu", "bfloat16")


def test_what_a_drafter_is_quantised_to() -> None:
    for path in ("amx", "avx512bf16"):
        assert recipe_of("auto", "cpu", "bfloat16", path) == INT8
    for path in ("portable", None):
        assert recipe_of("auto", "cpu", "bfloat16", path) == UNQUANTIZED
    assert recipe_of("auto", "cuda", "bfloat16") == UNQUANTIZED


def test_fp8_refuses_shapes_that_have_no_product() -> None:
    with pytest.raises(ModelError, match=r"\[48, 90\]"):
        Fp8Linear(random(48, 90))
