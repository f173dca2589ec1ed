"""Weights for tests and for mocked models: right shapes, no meaning."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from paceline.models.config import ModelConfig
from paceline.models.tensors import expected_tensors


def random_weights(
    config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Draw every tensor of `expected_tensors(config)`, in order of name with `seed`.

    Matrices are scaled by their input size, so that activations keep unit size at any depth and the
    argmax wanders over the vocabulary instead of repeating one token.
    """
    generator = torch.Generator().manual_seed(seed)
    return {
        name: _draw(name, shape, generator).to(dtype)
        for name, shape in sorted(expected_tensors(config).items())
    }


class RandomTensors(Mapping[str, Tensor]):
    """Random weights, each drawn when it is asked for and not kept: only the tensors packed from
    them are in memory. Equal names, shapes and seeds give equal tensors."""

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, seed: int = 0
    ) -> None:
        self.shapes, self.dtype, self.seed = dict(shapes), dtype, seed

    def __getitem__(self, name: str) -> Tensor:
        shape = self.shapes[name]
        # Seed and name in one number: torch's CPU generator takes 32 bits of it.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        return _draw(name, shape, generator).to(self.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together; no tensor is drawn to count them."""
        sizes = (torch.Size(shape).numel() for shape in self.shapes.values())
        return sum(sizes) * self.dtype.itemsize


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 2:
        return noise.mul_(shape[1] ** -0.5)
    return noise.mul_(0.1).add_(1) if name.endswith("norm.weight") else noise.mul_(0.1)
