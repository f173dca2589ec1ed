"""Optimizers by name."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.optimizer import StateDict

from paceline.training.config import TrainConfig
from paceline.training.muon import Muon

BETAS = (0.9, 0.95)
CODEBOOKS = "codebook"  # tables with a row per token: looked up, not multiplied by


class Optimizers:
    """AdamW for everything, or Muon for the matrices and AdamW for the rest (Jordan et al. 2024).

    The learning rates are shares of their peaks, as `Schedule` says. State saves and loads as one.
    `computed` are the numbers that Muon multiplies in.
    """

    def __init__(
        self, module: nn.Module, config: TrainConfig, computed: torch.dtype = torch.float32
    ) -> None:
        matrices: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, parameter in module.named_parameters():
            matrix = parameter.ndim == 2 and CODEBOOKS not in name
            (matrices if matrix and config.optimizer == "muon" else rest).append(parameter)
        decay, lr = config.weight_decay, config.value("matrix_lr")
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            self._parts.append(Muon(matrices, lr, weight_decay=decay, computed=computed))
        self._parts.append(
            torch.optim.AdamW(rest, lr=config.lr, betas=BETAS, weight_decay=decay, fused=True)
        )
        self._peaks = [[group["lr"] for group in part.param_groups] for part in self._parts]

    def step(self, share: float) -> None:
        """Take one step at `share` of the peak learning rates, and clear the gradients."""
        for part, peaks in zip(self._parts, self._peaks, strict=True):
            for group, peak in zip(part.param_groups, peaks, strict=True):
                group["lr"] = peak * share
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[StateDict]:
        return [part.state_dict() for part in self._parts]

    def load(self, states: list[StateDict]) -> None:
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)
