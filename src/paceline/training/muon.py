"""Muon: momentum whose update is made orthogonal, for matrices (Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon/).

torch.optim.Muon multiplies in bfloat16 whatever the device is, which a CPU without instructions for
it does some 80 times slower than float32. It takes the matrices one after another, and multiplies
by the whole matrix in every iteration.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic, which rises steeply at 0
ITERATIONS = 5
PLAIN = (1,) * ITERATIONS
SMALLEST_NORM = 1e-7
EXACT = (5,)  # iterations between two products with the matrix itself, in float32
ROUNDED = (3, 2)  # in bfloat16, where G has to be computed anew
TOGETHER = 2**24  # numbers of equal matrices that are updated together


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
            for equal in _equal_shapes(group["params"]):
                self._update(equal, group)
        return loss

    def _update(self, parameters: Sequence[Tensor], group: dict[str, Any]) -> None:
        momentum, (rows, columns) = group["momentum"], parameters[0].shape
        updates = parameters[0].new_empty(len(parameters), rows, columns)
        for parameter, update in zip(parameters, updates, strict=True):
            grad, state = parameter.grad, self.state[parameter]
            assert grad is not None
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(grad)
            buffer = state["momentum_buffer"]
            buffer.lerp_(grad, 1 - momentum)
            torch.lerp(grad, buffer, momentum, out=update)
        updates = orthogonal(updates, self._computed).to(updates.dtype)
        lr, decay = group["lr"], group["weight_decay"]
        for parameter, update in zip(parameters, updates, strict=True):
            if decay:
                parameter.mul_(1 - lr * decay)
            parameter.add_(update, alpha=-lr * math.sqrt(max(1, rows / columns)))


def _equal_shapes(parameters: Iterable[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Yield the parameters with a gradient, those of one shape together, up to TOGETHER numbers:
    products of several matrices keep all cores busy where those of one do not."""
    shapes: defaultdict[torch.Size, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            shapes[parameter.shape].append(parameter)
    for shape, equal in shapes.items():
        count = max(1, TOGETHER // shape.numel())
        for start in range(0, len(equal), count):
            yield equal[start : start + count]


def orthogonal(matrices: Tensor, computed: torch.dtype) -> Tensor:
    """Return about the nearest matrices with orthogonal rows or columns, [count, m, n], in
    `computed`.

    Five Newton–Schulz iterations X ← (aI + bG + cG²)X with G = XXᵀ, where X is a matrix over its
    norm; the singular values end between about 0.7 and 1.2. A matrix that is taller than wide is
    multiplied from the right, with G = XᵀX. All iterates are polynomials of the first G times the
    first X, so that several iterations need a product with X at their first and last only, and
    what lies between has the size of G. In float32 those are all five. In bfloat16, G is rounded to
    numbers with negative eigenvalues, which would grow past 200 in five iterations where a gradient
    has a low rank; G is computed anew after three, and the result is as near as that of the plain
    iterations.
    """
    norms: Tensor = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    result = matrices.to(computed) / norms.clamp(min=SMALLEST_NORM).to(computed)
    parts = EXACT if computed is torch.float32 else ROUNDED
    for iterations in parts if _gram_is_cheaper(result, parts) else PLAIN:
        result = _iterated(result, iterations)
    return result


def _gram_is_cheaper(matrices: Tensor, parts: Sequence[int]) -> bool:
    """Compare the products of both forms, in units of m x m x m, n being `length` times m."""
    rows, columns = matrices.shape[1:]
    length = max(rows, columns) / min(rows, columns)

    def products(parts: Sequence[int]) -> float:
        return sum(4 * iterations - 3 + 2 * length for iterations in parts)

    return products(parts) < products(PLAIN)


def _iterated(matrices: Tensor, iterations: int) -> Tensor:
    """Return the matrices after so many iterations, all but the first on G alone."""
    tall = matrices.shape[1] > matrices.shape[2]
    gram = matrices.mT @ matrices if tall else matrices @ matrices.mT
    factor = _quintic(gram)
    product = factor
    for _ in range(iterations - 1):
        gram = factor @ gram @ factor
        factor = _quintic(gram)
        product = factor @ product
    return matrices @ product if tall else product @ matrices


def _quintic(gram: Tensor) -> Tensor:
    """Return aI + bG + cG²."""
    a, b, c = COEFFICIENTS
    factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal(dim1=1, dim2=2).add_(a)
    return factor
