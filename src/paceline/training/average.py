"""A running average of the weights, which is judged beside the weights themselves.

At a constant learning rate the weights swing around what they are near to; an average over the last
part of the run is often better. Its window grows with the run (power function average, Karras et
al. 2024, arXiv 2312.02696), so that it needs no length of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

POWER = 6.94  # Karras et al.'s gamma for a window of about a tenth of the run


class Average:
    """The average of a module's parameters over the steps so far, the newest ones weighing most."""

    def __init__(self, module: nn.Module) -> None:
        self._live = dict(module.named_parameters())
        self._mean = {name: p.detach().clone() for name, p in self._live.items()}

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Take in the weights after step `step`, counted from 1."""
        share = 1 - (1 - 1 / step) ** (POWER + 1)
        for name, parameter in self._live.items():
            self._mean[name].lerp_(parameter, share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the average into the module for a while."""
        kept = {name: p.detach().clone() for name, p in self._live.items()}
        self._put(self._mean)
        try:
            yield
        finally:
            self._put(kept)

    def state(self) -> dict[str, Tensor]:
        return self._mean

    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, mean in self._mean.items():
            mean.copy_(state[name])

    @torch.no_grad()
    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self._live.items():
            parameter.copy_(weights[name])
