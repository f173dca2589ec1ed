"""Quantisation: which linear layers are quantised, to what, and what they compute then."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.core import InvalidRequest, ModelError
from paceline.kernels import fp8, int8
from paceline.models.batch import Part
from paceline.models.layers import Linear

LINEARS = (Part.QKV, Part.OUTPUT, Part.GATE_UP, Part.DOWN, Part.HEAD, Part.CONTEXT)
VERSION = 1  # of what quantising does: raised when it changes, since measured quality is kept
QUANTIZE = ("int8",)  # what may be asked for
AUTO = "auto"  # for drafters, where nobody says otherwise: see recipe_of()
INT8_PATHS = ("amx", "avx512bf16", "amx-emulated")  # kernels with instructions for int8 products
FP8_CAPABILITY = (8, 9)  # the first GPUs with fp8 products: Ada, then Hopper


@dataclass(frozen=True, slots=True)
class Recipe:
    """`linears` go to `number`, "int8" on CPU and "fp8" on CUDA, both with a scale per output of a
    weight and per row of its input; everything else stays in the network's dtype."""

    number: str
    linears: frozenset[str] = frozenset(LINEARS)

    def takes(self, linear: str) -> bool:
        return linear in self.linears

    def itemsize(self, linear: str, dtype: torch.dtype) -> int:
        """Return the bytes of an element of that layer's weight."""
        return 1 if self.takes(linear) else dtype.itemsize


# No linear layer is left in bf16: all of them together keep perplexity within 1 % for every model
# that was measured (benchmarks/int8.py, docs/benchmarks.md).
UNQUANTIZED, INT8, FP8 = Recipe("", frozenset()), Recipe("int8"), Recipe("fp8")


def recipe_of(quantize: str | None, device: str, dtype: str, path: str | None = None) -> Recipe:
    """Return the recipe that `quantize` stands for on a device, for a network that runs on this
    `path` of the fused kernels; None: on torch.

    AUTO stands for int8 on the paths that have instructions for its products, and for nothing
    elsewhere. It is for drafters: a draft is verified, so its numbers change no text.
    Raises InvalidRequest where the device has no fast products of that kind.
    """
    if quantize == AUTO:
        return INT8 if path in INT8_PATHS else UNQUANTIZED
    if quantize is None:
        return UNQUANTIZED
    if quantize not in QUANTIZE:
        raise InvalidRequest("quantize", quantize, "one of " + ", ".join(QUANTIZE))
    if device != "cuda":
        return INT8
    if dtype != "bfloat16":
        raise InvalidRequest("dtype", dtype, "bfloat16: fp8 products on CUDA give nothing else")
    capability = torch.cuda.get_device_capability()
    if capability < FP8_CAPABILITY:
        expected = "nothing: fp8 needs a GPU of compute capability {}.{}, this one has {}.{}"
        raise InvalidRequest("quantize", quantize, expected.format(*FP8_CAPABILITY, *capability))
    return FP8


class Int8Linear(Linear):
    """W8A8 as in kernels/int8.py: `weight` int8 [out, in], rotated, with `scales` [out]."""

    BY_OUTPUT = ("weight", "bias", "scales")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.scales: Tensor
        quantised, self.scales = int8.quantize_weight(weight)
        super().__init__(quantised, bias)

    def __call__(self, x: Tensor) -> Tensor:
        wide = int8.linear(x, self.weight, self.scales)
        return (wide if self.bias is None else wide + self.bias).to(x.dtype)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return int8.restore(self.weight[ids], self.scales[ids]).to(dtype)


class Fp8Linear(Linear):
    """As in kernels/fp8.py: `weight` float8_e4m3 [out, in] with `scales` [out]."""

    BY_OUTPUT = ("weight", "bias", "scales")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        if weight.shape[0] % 16 or weight.shape[1] % 16:
            raise ModelError(
                f"quantize: a linear layer of shape {list(weight.shape)} has no fp8 product; "
                "expected multiples of 16"
            )
        self.scales: Tensor
        small, self.scales = fp8.quantize_rows(weight)
        super().__init__(small, bias)

    def product(self, x: Tensor) -> Tensor:
        y = fp8.linear(x, self.weight, self.scales)
        return y if self.bias is None else y + self.bias

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        # As bytes: indexing knows no float8.
        small = self.weight.view(torch.uint8)[ids].view(fp8.FP8)
        return (small.float() * self.scales[ids, None]).to(dtype)


NUMBERS: dict[str, type[Int8Linear | Fp8Linear]] = {"int8": Int8Linear, "fp8": Fp8Linear}


def make_linear(recipe: Recipe, name: str, weight: Tensor, bias: Tensor | None = None) -> Linear:
    """Return the layer `name` (one of LINEARS) as the recipe wants it."""
    kind = NUMBERS[recipe.number] if recipe.takes(name) else Linear
    return kind(weight, bias)
