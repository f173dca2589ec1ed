"""fp8 products (float8_e4m3), with a scale per output of the weight and per row of its input. No
rotation as in kernels/int8.py: an exponent of its own keeps a small number beside a large one."""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
LEAST = 1e-30


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x [rows, k] as (fp8 [rows, k], scales float32 [rows]), about whose product x is."""
    wide = x.float()
    scales = wide.abs().amax(-1).clamp(min=LEAST) / LARGEST
    return (wide / scales[:, None]).clamp(-LARGEST, LARGEST).to(FP8), scales


def linear(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Return x [rows, k] times what quantize_rows() made of a weight [n, k], bfloat16 [rows, n]. On
    CUDA n and k are multiples of 16."""
    q, by_row = quantize_rows(x)
    if not x.is_cuda:
        wide = q.float() @ weight.float().T
        return (wide * by_row[:, None] * scales).to(torch.bfloat16)
    return torch._scaled_mm(
        q, weight.T, scale_a=by_row[:, None], scale_b=scales[None], out_dtype=torch.bfloat16
    )
