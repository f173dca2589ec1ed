"""Formulas of DFlash that the training form and the serving forms share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.dflash.config import DFlashConfig


def block_kernels(projected: Tensor, base: Tensor) -> Tensor:
    """Return kernels [2, rows, taps, hidden], of a sublayer's input and of its output, for every
    row: base [2, taps, hidden] plus what `projected` [rows, 2 * taps * groups] gives each group of
    channels."""
    _, taps, hidden = base.shape
    dynamic = projected.view(len(projected), 2, taps, -1)
    kernels = dynamic.repeat_interleave(hidden // dynamic.shape[-1], dim=-1) + base.to(
        projected.dtype
    )
    return kernels.transpose(0, 1)


def convolve(x: Tensor, kernels: Tensor, slots: Tensor) -> Tensor:
    """Return the convolution of x [rows, hidden] with kernels [rows, taps, hidden]; `slots` [rows]
    is each row's place in its block, whose start no tap crosses."""
    out = kernels[:, 0] * x
    for tap in range(1, kernels.shape[1]):
        earlier = functional.pad(x[:-tap], (0, 0, tap, 0))[: len(x)]
        out = out + kernels[:, tap] * torch.where((slots >= tap)[:, None], earlier, 0)
    return out


def scaled_logits(config: DFlashConfig, logits: Tensor) -> Tensor:
    """Return the head's raw output as the config scales and caps it, in float32."""
    logits = logits.float()
    if config.output_multiplier != 1:  # a product with 1 takes as long as with anything else
        logits = logits * config.output_multiplier
    return capped(logits, config.softcap)


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Return logits bent smoothly into [-softcap, softcap]; None leaves them."""
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap
