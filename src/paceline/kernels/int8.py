"""int8 products in plain torch: what the fused kernels equal, bit by bit.

A row of weights or of activations is rotated, then rounded with a symmetric scale of its own (W8A8,
per channel and per token). The rotation is a Hadamard transform over blocks of the row, as large as
the powers of two in its size allow: it spreads a row's few large values over all others, so that
one scale serves them, and only scales the product of two rotated rows (QuaRot, arXiv 2404.00456).
Sums are int32, exact in any order: a row's bits depend on that row alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST = 1e-30  # rows of nothing larger count as zeros: their scale's inverse ends
SMALLEST_BLOCK = 16


def rotation_block(k: int) -> int:
    """Return the size of the blocks that rows of k elements are rotated in; 1 for no rotation."""
    block = k & -k
    return block if block >= SMALLEST_BLOCK else 1


def rotate(x: Tensor) -> Tensor:
    """Return x [rows, k] float32 times the (symmetric) Hadamard matrix of ±1, block by block."""
    distance = 1
    while distance < rotation_block(x.shape[1]):
        a, b = x.view(len(x), -1, 2, distance).unbind(2)
        x = torch.stack((a + b, a - b), dim=2).view(x.shape)
        distance *= 2
    return x


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x [rows, k] as (q int8 [rows, k], scales float32 [rows]): rotated, x is q * scale."""
    wide = rotate(x.float())
    largest = wide.abs().amax(-1)
    # Divided, not `127.0 / largest`, which torch makes a product with the rounded reciprocal.
    inverse = torch.where(largest > LEAST, torch.full_like(largest, 127.0) / largest, 0.0)
    return (wide * inverse[:, None]).round().to(torch.int8), largest / 127.0


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight [n, k] as (int8 [n, k], scales float32 [n]), for products with such rows."""
    quantised, scales = quantize_rows(weight)
    return quantised, scales / rotation_block(weight.shape[1])


def restore(quantised: Tensor, scales: Tensor) -> Tensor:
    """Return about the weight [n, k] that quantize_weight() took, float32."""
    return rotate(quantised.float()) * scales[:, None]


def linear(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Return x [rows, k] times what quantize_weight() made of a weight, as float32 [rows, n]."""
    q, by_row = quantize_rows(x)
    return torch._int_mm(q, weight.T).float() * by_row[:, None] * scales
