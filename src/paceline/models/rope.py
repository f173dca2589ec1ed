"""Rotary position embedding (RoFormer, arXiv 2104.09864) and the ways models stretch it."""

from __future__ import annotations

import math

import torch

from paceline.models.config import ModelConfig, RopeConfig


def rope_tables(config: ModelConfig, max_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of every position's angles, each float32 [max_positions, head_dim // 2].

    Dimension i is rotated together with dimension i + head_dim / 2. Yarn's attention factor is
    already multiplied in, so that the caller only ever rotates.
    """
    frequencies = rope_frequencies(config.rope, config.head_dim)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    scale = config.rope.attention_factor
    return angles.cos() * scale, angles.sin() * scale


def rope_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position of each pair of dimensions, float32 [head_dim // 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    return _SCALED[rope.type](rope, frequencies, head_dim)


def _default(rope: RopeConfig, frequencies: torch.Tensor, head_dim: int) -> torch.Tensor:
    return frequencies


def _linear(rope: RopeConfig, frequencies: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Position interpolation (arXiv 2306.15595)."""
    return frequencies / rope.factor


def _llama3(rope: RopeConfig, frequencies: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Llama 3.1: wavelengths that fit often into the old context stay, rare ones are stretched.

    Between `low_freq_factor` and `high_freq_factor` turns per old context the two are blended.
    """
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    kept = ((turns - rope.low_freq_factor) / span).clamp(0, 1)
    return (1 - kept) * frequencies / rope.factor + kept * frequencies


def _yarn(rope: RopeConfig, frequencies: torch.Tensor, head_dim: int) -> torch.Tensor:
    """YaRN (arXiv 2309.00071): a ramp over dimensions from kept to interpolated frequencies."""

    def dimension(turns: float) -> float:
        """The dimension pair that makes so many turns over the pretrained context."""
        wavelength = rope.original_max_positions / (turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    first, last = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = (last - first) or 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    return ramp * frequencies / rope.factor + (1 - ramp) * frequencies


_SCALED = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
