"""Muon: updates are orthogonal, whatever shape and rank the gradient has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from paceline.training.muon import COEFFICIENTS, ITERATIONS, Muon, orthogonal

SHAPES = [(24, 24), (24, 30), (24, 200), (200, 24), (1, 40), (40, 1)]


def plain(matrix: Tensor) -> Tensor:
    """The iterations as they are written down, in double precision, by singular values."""
    left, values, right = torch.linalg.svd(matrix.double() / matrix.double().norm(), False)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        values = a * values + b * values**3 + c * values**5
    return left @ values.diag() @ right


def likeness(one: Tensor, other: Tensor) -> float:
    return float(cosine_similarity(one.double().flatten(), other.double().flatten(), dim=0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 3, 24])
def test_float32_is_as_exact_as_double_in_every_shape_and_rank(
    shape: tuple[int, int], rank: int
) -> None:
    torch.manual_seed(rank)
    matrix = torch.randn(shape[0], rank) @ torch.randn(rank, shape[1])
    found = orthogonal(matrix, torch.float32)
    torch.testing.assert_close(found.double(), plain(matrix), atol=2e-3, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 3, 24])
def test_bfloat16_stays_bounded_where_a_gradient_has_a_low_rank(
    shape: tuple[int, int], rank: int
) -> None:
    torch.manual_seed(rank)
    matrix = torch.randn(shape[0], rank) @ torch.randn(rank, shape[1])
    found = orthogonal(matrix, torch.bfloat16)
    assert found.dtype is torch.bfloat16
    assert float(torch.linalg.matrix_norm(found.float(), 2)) < 1.5


def test_no_gradient_at_all_moves_nothing() -> None:
    assert torch.equal(orthogonal(torch.zeros(3, 5), torch.float32), torch.zeros(3, 5))


@pytest.mark.parametrize("shape", [(32, 16), (16, 32)])
def test_steps_go_where_those_of_torch_go(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    begin = torch.randn(shape)
    ours, theirs = nn.Parameter(begin.clone()), nn.Parameter(begin.clone())
    optimizers = [
        Muon([ours], 0.02, weight_decay=0.1, computed=torch.float32),
        torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1),
    ]
    for _ in range(10):
        gradient = torch.randn(shape)
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    assert likeness(ours.data - begin, theirs.data - begin) > 0.999
    torch.testing.assert_close(ours.data, theirs.data, atol=0.01, rtol=0)  # theirs is bfloat16
