"""The pieces of a decoder layer in plain torch, each giving a row the same bits in any company:
kernels choose the order of their sums by shape, so matrix products always run on tiles of exactly
TILE rows, and everything else is a reduction within a row or elementwise."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor
from torch.nn import functional

Angles = tuple[Tensor, Tensor]  # cos and sin, float32 [rows, head_dim // 2] each
TILE = 32  # rows of every matrix product; rows are padded to a multiple of it


class Linear:
    """y = x W^T + b for any number of rows that is a multiple of TILE. `weight` is [out, in]."""

    BY_OUTPUT: tuple[str, ...] = ("weight", "bias")  # tensors (or None) with a row for each output

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs [rows, out] of x [rows, in], one tile at a time."""
        tiles = [self.product(tile) for tile in torch.split(x, TILE)]
        return tiles[0] if len(tiles) == 1 else torch.cat(tiles)

    def product(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Return rows `ids` of the weight, a copy."""
        return self.weight.index_select(0, ids).to(dtype)

    def outputs_from(self, first: int, *lower: Linear) -> Linear:
        """Return the layer without its first outputs, and those of others of its kind below."""
        other = copy(self)
        for name in self.BY_OUTPUT:
            if getattr(self, name) is not None:
                parts = [getattr(linear, name)[first:] for linear in (self, *lower)]
                setattr(other, name, torch.cat(parts))
        return other

    def read(self) -> None:
        """Read the weight once and do nothing else with it."""
        words = self.weight.flatten().view(torch.uint8)
        # As float32, whose sum keeps up with memory; that of bfloat16 would not.
        words[: len(words) // 4 * 4].view(torch.float32).sum()

    @property
    def bytes(self) -> int:
        tensors = (getattr(self, name) for name in self.BY_OUTPUT)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return RMSNorm (arXiv 1910.07467) over the last dimension: in float32, rounded once."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [rows, heads, head_dim] (RoFormer, arXiv 2104.09864), in float32. Dimension i is
    paired with i + head_dim / 2."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up (arXiv 2002.05202) of [rows, 2 * size], in float32. Spelled with exp:
    torch's own silu rounds the last elements of a thread's share differently, so a row's bits would
    depend on how many rows there are."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)


def pad_rows(count: int) -> int:
    """Return the next multiple of TILE."""
    return -(-count // TILE) * TILE
