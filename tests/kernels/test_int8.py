"""int8 operations against their torch twins, to the bit, and each row's bits in any company."""

from __future__ import annotations

import ctypes

import pytest
import torch

from paceline.kernels import abi, build, int8
from paceline.kernels.packing import Arena, pack, packed_bytes, padded, unpack_rows
from paceline.models.packed_weights import quantize_weight

from .test_single_ops import at, random

SIZES = [(48, 64), (199, 80), (40, 88), (40, 96), (1536, 896), (96, 8960), (64, 4096)]


def rows_of(rows: int, k: int, seed: int = 0) -> torch.Tensor:
    """bf16 rows with what is hard about activations: outliers, rows of zeros, sizes far apart."""
    x = random(rows, k, seed=seed)
    x[:, 3] *= 100
    x *= torch.logspace(-6, 4, rows)[torch.randperm(rows)][:, None]
    x[rows // 2] = 0
    return x.to(torch.bfloat16)


@pytest.mark.parametrize(("_", "k"), SIZES)
def test_quantised_rows_equal_the_twin(ops: ctypes.CDLL, _: int, k: int) -> None:
    rows, stride = 37, padded(k, 64)
    x = rows_of(rows, k)
    q, scales = torch.full((rows, stride), 99, dtype=torch.int8), torch.empty(rows)
    offsets = torch.empty(rows, dtype=torch.int32)
    sizes = map(ctypes.c_int64, (rows, k, stride))
    ops.op_quantize(at(x), *sizes, at(q), at(scales), at(offsets))
    expected, expected_scales = int8.quantize_rows(x)
    assert torch.equal(q[:, :k], expected) and not q[:, k:].any()
    assert torch.equal(scales, expected_scales)
    assert torch.equal(offsets, 128 * expected.int().sum(-1, dtype=torch.int32))


@pytest.mark.parametrize("damage", [torch.nan, torch.inf])
def test_damaged_rows_stay_recognisable(ops: ctypes.CDLL, damage: float) -> None:
    x = rows_of(4, 64)
    x[1, 5] = damage
    q, scales = torch.empty(4, 64, dtype=torch.int8), torch.empty(4)
    sizes, offsets = map(ctypes.c_int64, (4, 64, 64)), torch.empty(4, dtype=torch.int32)
    ops.op_quantize(at(x), *sizes, at(q), at(scales), at(offsets))
    assert scales.isfinite().tolist() == [True, False, True, True]


class Int8Product:
    """A quantised weight, and its product with rows by the fused operation."""

    def __init__(self, ops: ctypes.CDLL, n: int, k: int) -> None:
        self.ops, self.n, self.weight = ops, n, random(n, k, seed=1).to(torch.bfloat16)
        self.whole, self.scales = int8.quantize_weight(self.weight)
        self.room = Arena(packed_bytes(n, k, 1)).take_matrix(n, k, 1)
        pack(self.whole, self.room)
        self.by_output = torch.nn.functional.pad(self.scales, (0, padded(n, 32) - n))
        self.matrix = abi.Matrix(self.room.data_ptr(), None, self.by_output.data_ptr(), n, k)

    def __call__(self, x: torch.Tensor, threads: int = 2) -> torch.Tensor:
        out = torch.full((len(x), self.n), torch.nan)
        sizes = map(ctypes.c_int64, (len(x), threads))
        self.ops.op_int8_linear(ctypes.byref(self.matrix), at(x.contiguous()), *sizes, at(out))
        return out


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_products_equal_the_twin_and_their_rows_those_of_any_company(
    ops: ctypes.CDLL, n: int, k: int
) -> None:
    product, x = Int8Product(ops, n, k), rows_of(300, k)
    whole = product(x)
    assert torch.equal(whole, int8.linear(x, product.whole, product.scales))
    for rows in (*range(1, 65), 97, 193):
        first = (rows * 7) % (300 - rows)
        part = product(x[first : first + rows], threads=1 + rows % 3)
        assert torch.equal(part, whole[first : first + rows]), rows


def test_control_the_largest_sums_do_not_overflow(ops: ctypes.CDLL) -> None:
    """All 127 times all -127, in rows as wide as a 7B model's: the sums plus offset pass 2^30."""
    n, k = 32, 16384 + 8  # rows that stay as they are: a rotation would make them spikes
    product = Int8Product(ops, n, k)
    product.whole = torch.full((n, k), -127, dtype=torch.int8)
    pack(product.whole, product.room)
    x = torch.ones(3, k, dtype=torch.bfloat16)
    got = product(x)
    assert torch.equal(got, int8.linear(x, product.whole, product.scales))
    assert torch.allclose(got, -127.0 * k * product.scales.expand(3, n), rtol=1e-6)


@pytest.mark.parametrize("k", [64, 80, 88, 1536])
def test_rotated_products_are_those_of_the_rows(k: int) -> None:
    """The rotation alone changes nothing, and makes int8 far more exact beside an outlier."""
    x, weight = random(16, k), random(24, k, seed=1)
    x[:, 1] += 50
    exact, block = x @ weight.T, int8.rotation_block(k)
    assert torch.allclose(int8.rotate(x) @ int8.rotate(weight).T / block, exact, atol=1e-2)
    rounded = int8.linear(x, *int8.quantize_weight(weight))
    error = (rounded - exact).norm() / exact.norm()
    assert error < (0.03 if block == 1 else 0.01)
    assert (int8.restore(*int8.quantize_weight(weight)) - weight).abs().max() < 0.05


def test_weights_are_quantised_natively_as_by_the_twin(kernel_path: str) -> None:
    library = build.load().library
    for n, k in SIZES:
        weight = random(n, k, seed=n).to(torch.bfloat16)
        weight[0, 0] = 300
        got, expected = quantize_weight(library, weight), int8.quantize_weight(weight)
        assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1]), (n, k)


@pytest.mark.parametrize(("n", "k"), [(16, 64), (1, 2), (40, 70)])
def test_packing_keeps_every_weight(n: int, k: int) -> None:
    whole = torch.randint(-127, 128, (n, k), dtype=torch.int8)
    packed = torch.empty(padded(n, 32) // 32, padded(k, 64) // 4, 32, dtype=torch.int32)
    pack(whole, packed)
    assert torch.equal(unpack_rows(packed, torch.arange(n), k, torch.int8), whole)
    ids = torch.tensor([n - 1, 0])
    assert torch.equal(unpack_rows(packed, ids, k, torch.int8), whole[ids])
