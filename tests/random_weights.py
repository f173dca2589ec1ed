"""Weights of the right shapes, without meaning."""

from __future__ import annotations

import torch

from paceline.models.config import ModelConfig
from paceline.models.tensors import expected_tensors
from paceline.models.weights import draw


def random_weights(
    config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Draw every tensor of `expected_tensors(config)`, in order of name with `seed`."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: draw(name, shape, generator).to(dtype)
        for name, shape in sorted(expected_tensors(config).items())
    }
