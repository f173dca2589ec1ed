"""Which linear layers are quantised, and to what."""

from __future__ import annotations

from dataclasses import dataclass

# A decoder layer's products, the output head, and a DFlash drafter's projection of features.
LINEARS = ("qkv", "o", "gate_up", "down", "head", "context")


@dataclass(frozen=True, slots=True)
class Recipe:
    """`linears` go to `number`; everything else stays in the network's dtype.

    "int8" on CPU, "fp8" (float8_e4m3) on CUDA; both with a scale per output of a weight and per row
    of its input.
    """

    number: str
    linears: frozenset[str] = frozenset(LINEARS)

    def takes(self, linear: str) -> bool:
        return linear in self.linears


UNQUANTIZED = Recipe("", frozenset())
INT8, FP8 = Recipe("int8"), Recipe("fp8")
