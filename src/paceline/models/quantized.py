"""Linear layers whose weights and inputs are quantised."""

from __future__ import annotations

from collections.abc import Callable

import torch

from paceline.core import ModelError
from paceline.kernels import fp8, int8
from paceline.models.layers import Linear
from paceline.models.recipe import Recipe


class Int8Linear(Linear):
    """W8A8 as in kernels/int8.py: `weight` int8 [out, in], rotated, with `scales` [out]."""

    BY_OUTPUT = ("weight", "bias", "scales")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.scales: torch.Tensor
        whole, self.scales = int8.quantize_weight(weight)
        super().__init__(whole, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = int8.linear(x, self.weight, self.scales)
        return (wide if self.bias is None else wide + self.bias).to(x.dtype)

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return int8.restore(self.weight[ids], self.scales[ids]).to(dtype)


class Fp8Linear(Linear):
    """As in kernels/fp8.py: `weight` float8_e4m3 [out, in] with `scales` [out]."""

    BY_OUTPUT = ("weight", "bias", "scales")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        if weight.shape[0] % 16 or weight.shape[1] % 16:
            raise ModelError(
                f"quantize: a linear layer of shape {list(weight.shape)} has no fp8 product; "
                "expected multiples of 16"
            )
        self.scales: torch.Tensor
        small, self.scales = fp8.quantize_rows(weight)
        super().__init__(small, bias)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        y = fp8.linear(x, self.weight, self.scales)
        return y if self.bias is None else y + self.bias

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        # As bytes: indexing knows no float8.
        small = self.weight.view(torch.uint8)[ids].view(fp8.FP8)
        return (small.float() * self.scales[ids, None]).to(dtype)


NUMBERS: dict[str, Callable[[torch.Tensor, torch.Tensor | None], Linear]] = {
    "int8": Int8Linear,
    "fp8": Fp8Linear,
}


def make_linear(
    recipe: Recipe, name: str, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> Linear:
    """The layer `name` (one of recipe.LINEARS) as the recipe wants it."""
    if not recipe.takes(name):
        return Linear(weight, bias)
    return NUMBERS[recipe.number](weight, bias)
