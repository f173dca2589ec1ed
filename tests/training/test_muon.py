"""Muon: updates are orthogonal, whatever shape and rank the gradient has."""

from __future__ import annotations

import math
from copy import deepcopy

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
    found = orthogonal(matrix[None], torch.float32)[0]
    torch.testing.assert_close(found.double(), plain(matrix), atol=2e-3, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 3, 24])
def test_bfloat16_stays_bounded_where_a_gradient_has_a_low_rank(
    shape: tuple[int, int], rank: int
) -> None:
    torch.manual_seed(rank)
    matrix = torch.randn(1, shape[0], rank) @ torch.randn(rank, shape[1])
    found = orthogonal(matrix, torch.bfloat16)
    assert found.dtype is torch.bfloat16
    assert float(torch.linalg.matrix_norm(found[0].float(), 2)) < 1.5


def decaying(shape: tuple[int, int], smallest: float) -> Tensor:
    """Return a matrix whose singular values fall evenly from 1 to the smallest, in logarithms."""
    left, values, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    return left @ torch.logspace(0, math.log10(smallest), len(values)).diag() @ right


def bfloat16_iterations(matrix: Tensor) -> Tensor:
    """The iterations as they are written down, in bfloat16."""
    a, b, c = COEFFICIENTS
    matrix = (matrix / matrix.norm()).bfloat16()
    for _ in range(ITERATIONS):
        gram = matrix @ matrix.T
        matrix = a * matrix + (b * gram + c * gram @ gram) @ matrix
    return matrix


@pytest.mark.parametrize("shape", [(192, 512), (512, 192), (128, 640)])
@pytest.mark.parametrize("smallest", [1.0, 1e-2, 1e-4])
def test_bfloat16_is_as_near_over_the_gram_matrix_as_by_plain_iterations(
    shape: tuple[int, int], smallest: float
) -> None:
    torch.manual_seed(0)
    matrix = decaying(shape, smallest)
    found, truth = orthogonal(matrix[None], torch.bfloat16)[0], plain(matrix)
    error, usual = (
        float((result.double() - truth).norm() / truth.norm())
        for result in (found, bfloat16_iterations(matrix))
    )
    assert error < 0.15  # of its length
    assert error < 1.25 * usual


def test_matrices_of_one_shape_are_updated_together_as_each_alone() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(5, 40, 96)
    for computed, atol in ((torch.float32, 1e-4), (torch.bfloat16, 0.02)):
        together = orthogonal(matrices, computed)
        alone = torch.cat([orthogonal(matrix[None], computed) for matrix in matrices])
        torch.testing.assert_close(together, alone, atol=atol, rtol=0)


@pytest.mark.parametrize("computed", [torch.float32, torch.bfloat16])
def test_steps_have_the_same_bits_every_time_whatever_was_kept_between(
    computed: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal shapes are taken in parts, and the state is saved and loaded."""
    monkeypatch.setattr("paceline.training.muon.TOGETHER", 2 * 64 * 96)
    torch.manual_seed(0)
    shapes = [(64, 96), (64, 96), (96, 64), (64, 64), (64, 96)]
    begin = [torch.randn(shape) for shape in shapes]
    gradients = [[torch.randn(shape) for shape in shapes] for _ in range(4)]

    def taken(interrupted: bool) -> list[Tensor]:
        parameters = [nn.Parameter(part.clone()) for part in begin]
        optimizer = Muon(parameters, 0.02, computed=computed)
        for number, step in enumerate(gradients):
            if interrupted and number == 2:
                state = deepcopy(optimizer.state_dict())
                optimizer = Muon(parameters, 0.02, computed=computed)
                optimizer.load_state_dict(state)
            for parameter, gradient in zip(parameters, step, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
        return [parameter.data for parameter in parameters]

    whole = taken(interrupted=False)
    assert all(map(torch.equal, whole, taken(interrupted=False)))
    assert all(map(torch.equal, whole, taken(interrupted=True)))


def test_no_gradient_at_all_moves_nothing() -> None:
    assert torch.equal(orthogonal(torch.zeros(2, 3, 5), torch.float32), torch.zeros(2, 3, 5))


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
