"""Muon: momentum whose update is made orthogonal, for matrices (Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon/).

torch.optim.Muon multiplies in bfloat16 whatever the device is, which a CPU without instructions for
it does some 80 times slower than float32, and it multiplies by the whole matrix in every iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic, which rises steeply at 0
ITERATIONS = 5
SMALLEST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal, for parameters of two dimensions.

    `lr` is that of a matrix that is not taller than wide; for one of m x n with m > n it is
    multiplied by sqrt(m / n). `computed` are the numbers to multiply in. `weight_decay` is
    decoupled (Loshchilov and Hutter 2019).
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        computed: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._computed = computed

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step; the gradient of each parameter is read and stays as it is."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, momentum = self.state[parameter], group["momentum"]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        buffer = state["momentum_buffer"]
        buffer.lerp_(grad, 1 - momentum)
        update = orthogonal(grad.lerp(buffer, momentum), self._computed)
        rows, columns = parameter.shape
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(
            update.to(parameter.dtype), alpha=-group["lr"] * math.sqrt(max(1, rows / columns))
        )


def orthogonal(matrix: Tensor, computed: torch.dtype) -> Tensor:
    """Return about the nearest matrix with orthogonal rows or columns, [m, n], in `computed`.

    Five Newton–Schulz iterations X ← (aI + bG + cG²)X with G = XXᵀ, where X is the matrix over its
    norm; the singular values end between about 0.7 and 1.2. All iterates are polynomials of the
    first G times the first X. In float32, wide matrices take part in the first and last product
    only, and what lies between has the size of G. In bfloat16 that form is not used: it rounds G to
    numbers with negative eigenvalues, which grow past 1,000 where a gradient has a low rank.
    """
    wide = matrix.to(computed)
    tall = wide.shape[0] > wide.shape[1]
    if tall:
        wide = wide.T
    wide = wide / wide.norm().clamp(min=SMALLEST_NORM)
    found = _over_gram(wide) if _gram_is_cheaper(wide) else _over_matrix(wide)
    return found.T if tall else found


def _gram_is_cheaper(wide: Tensor) -> bool:
    """Compare the products of both forms, in units of m x m x m, n being `length` times m."""
    length = wide.shape[1] / wide.shape[0]
    over_gram, over_matrix = 4 * ITERATIONS - 3 + 2 * length, ITERATIONS * (1 + 2 * length)
    return wide.dtype is torch.float32 and over_gram < over_matrix


def _over_matrix(wide: Tensor) -> Tensor:
    for _ in range(ITERATIONS):
        wide = _quintic(wide @ wide.T) @ wide
    return wide


def _over_gram(wide: Tensor) -> Tensor:
    gram = wide @ wide.T
    factor = _quintic(gram)
    product = factor
    for _ in range(ITERATIONS - 1):
        gram = factor @ gram @ factor
        factor = _quintic(gram)
        product = factor @ product
    return product @ wide


def _quintic(gram: Tensor) -> Tensor:
    """Return aI + bG + cG²."""
    a, b, c = COEFFICIENTS
    factor = torch.addmm(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal().add_(a)
    return factor
