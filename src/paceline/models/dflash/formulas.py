"""Formulas of DFlash that the training form and the serving forms share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.dflash.config import DFlashConfig


def convolved(
    sublayer: Callable[[Tensor], Tensor], x: Tensor, projected: Tensor, base: Tensor, slots: Tensor
) -> Tensor:
    """Return DFlash 2's sublayer, whose input x [rows, hidden] and output are convolved along the
    block. `slots` [rows] is each row's place in its block, whose start no tap crosses.

    The kernels of both convolutions are base [2, taps, hidden] plus what `projected` [rows, 2 *
    taps * groups] gives each group of channels.
    """
    _, taps, hidden = base.shape
    dynamic = projected.view(len(projected), 2, taps, -1)
    dynamic = dynamic.repeat_interleave(hidden // dynamic.shape[-1], dim=-1)
    before, after = (dynamic + base.to(projected.dtype)).transpose(0, 1)
    return _convolve(sublayer(_convolve(x, before, slots)), after, slots)


def _convolve(x: Tensor, kernels: Tensor, slots: Tensor) -> Tensor:
    """Return the convolution of x [rows, hidden] with kernels [rows, taps, hidden]."""
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
