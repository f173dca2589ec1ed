"""Weights for tests and for mocked models: right shapes, no meaning."""

from __future__ import annotations

import torch

from paceline.models.config import ModelConfig
from paceline.models.tensors import expected_tensors


def random_weights(
    config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Every tensor of `expected_tensors(config)`, drawn in order of name with `seed`.

    Matrices are scaled by their input size, so that activations keep unit size at any depth and the
    argmax wanders over the vocabulary instead of repeating one token.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in sorted(expected_tensors(config).items()):
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            noise *= shape[1] ** -0.5
        elif name.endswith("norm.weight"):
            noise = 1 + 0.1 * noise
        else:
            noise *= 0.1
        weights[name] = noise.to(dtype)
    return weights
