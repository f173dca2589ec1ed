"""Which linear layers are quantised, and to what."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.core import InvalidRequest

# A decoder layer's products, the output head, and a DFlash drafter's projection of features.
LINEARS = ("qkv", "o", "gate_up", "down", "head", "context")
VERSION = 1  # of what quantising does: raised when it changes, since measured quality is kept
QUANTIZE = ("int8",)  # what may be asked for
FP8_CAPABILITY = (8, 9)  # the first GPUs with fp8 products: Ada, then Hopper


@dataclass(frozen=True, slots=True)
class Recipe:
    """`linears` go to `number`; everything else stays in the network's dtype.

    "int8" on CPU, "fp8" on CUDA, both with a scale per output of a weight and per row of its input.
    """

    number: str
    linears: frozenset[str] = frozenset(LINEARS)

    def takes(self, linear: str) -> bool:
        return linear in self.linears

    def itemsize(self, linear: str, dtype: torch.dtype) -> int:
        """Bytes of an element of that layer's weight."""
        return 1 if self.takes(linear) else dtype.itemsize


# No linear layer is left in bf16: all of them together keep perplexity within 1 % for every model
# that was measured (benchmarks/int8.py, docs/benchmarks.md).
UNQUANTIZED, INT8, FP8 = Recipe("", frozenset()), Recipe("int8"), Recipe("fp8")


def recipe_of(quantize: str | None, device: str, dtype: str) -> Recipe:
    """The recipe that `quantize` stands for on a device. Raises InvalidRequest where the device has
    no fast products of that kind."""
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
