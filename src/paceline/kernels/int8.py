"""int8 products in plain torch: what the fused kernels equal, bit by bit.

Weights have a symmetric scale per output, activations one per row, taken from the row itself when
it arrives (W8A8, per channel and per token: Xiao et al., SmoothQuant, arXiv 2211.10438). Sums are
int32, exact in any order: a row's bits depend on that row alone.
"""

from __future__ import annotations

import torch

LEAST = 1e-30  # rows of nothing larger count as zeros: their scale's inverse ends


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, k] as (q int8 [rows, k], scales float32 [rows]): x is about q * scale."""
    wide = x.float()
    largest = wide.abs().amax(-1)
    inverse = torch.where(largest > LEAST, 127.0 / largest, 0.0)
    return (wide * inverse[:, None]).round().to(torch.int8), largest / 127.0


def linear(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """x [rows, k] times weight int8 [n, k] with `scales` [n], as float32 [rows, n]."""
    q, by_row = quantize_rows(x)
    return torch._int_mm(q, weight.T).float() * by_row[:, None] * scales
