"""Rotary position embedding (RoFormer, arXiv 2104.09864) and the ways models stretch it: read from
a config, and as tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields, first_with

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding. Fields beyond `theta` only matter to the types named beside them.
    `attention_factor` multiplies cos and sin; a config's mscale is resolved into it."""

    theta: float = 10000.0
    type: str = "default"
    factor: float = 1.0  # linear, llama3, yarn
    original_max_positions: int = 0  # llama3, yarn: the context the model was pretrained on
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: round the ramp's ends to whole dimensions
    attention_factor: float = 1.0  # yarn


def rope_tables(rope: RopeConfig, head_dim: int, max_positions: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin of every position's angles, float32 [max_positions, head_dim // 2] each.
    Yarn's attention factor is already multiplied in, so that the caller only ever rotates."""
    frequencies = rope_frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


def rope_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Return radians per position of each pair of dimensions, float32 [head_dim // 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.type == "llama3":
        return _llama3(rope, frequencies)
    if rope.type == "yarn":
        return _yarn(rope, frequencies, head_dim)
    # "linear" is position interpolation (arXiv 2306.15595); the factor of "default" is 1.
    return frequencies / rope.factor


def _llama3(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Llama 3.1: wavelengths that fit often into the old context stay, rare ones are stretched;
    between `low_freq_factor` and `high_freq_factor` turns per old context the two are blended."""
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    kept = ((turns - rope.low_freq_factor) / span).clamp(0, 1)
    return (1 - kept) * frequencies / rope.factor + kept * frequencies


def _yarn(rope: RopeConfig, frequencies: Tensor, head_dim: int) -> Tensor:
    """YaRN (arXiv 2309.00071): a ramp over dimensions from kept to interpolated frequencies."""

    def dimension(turns: float) -> float:
        """Return the dimension pair that makes so many turns over the pretrained context."""
        wavelength = rope.original_max_positions / (turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    first, last = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = (last - first) or 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    return ramp * frequencies / rope.factor + (1 - ramp) * frequencies


def read_rope(fields: ConfigFields, max_positions: int) -> RopeConfig:
    """Read `rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (before)."""
    rope = fields.section("rope_parameters" if fields.get("rope_parameters") else "rope_scaling")
    kind = rope_type(rope)
    partial = first_with("partial_rotary_factor", rope, fields).get("partial_rotary_factor")
    refused, supported = "", ""
    if any(isinstance(value, dict) for value in rope.values.values()):
        refused, supported = "rope parameters per layer type are", "one set for all layers"
    elif kind not in ROPE_TYPES:
        refused, supported = f"rope type {kind!r} is", ", ".join(ROPE_TYPES)
    elif partial not in (None, 1):
        refused, supported = f"partial_rotary_factor {partial} is", "1"
    if refused:
        raise ModelError(f"{fields.where}: {refused} not supported; supported: {supported}")
    theta = first_with("rope_theta", rope, fields).number("rope_theta", default=1e4)
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta, kind, rope.number("factor"))
    key = "original_max_position_embeddings"
    original = first_with(key, fields, rope).integer(key, default=max_positions)
    if kind == "yarn":
        return _read_yarn(rope, theta, original, max_positions)
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.error("high_freq_factor", high, f"more than low_freq_factor ({low:g})")
    return RopeConfig(theta, kind, rope.number("factor"), original, low, high)


def rope_type(rope: ConfigFields) -> str:
    """Return the type that rope parameters name, in the spelling of either release."""
    return str(rope.get("rope_type", "type") or "default")


def _read_yarn(rope: ConfigFields, theta: float, original: int, max_positions: int) -> RopeConfig:
    factor = rope.number("factor", default=max_positions / original)
    mscales = [rope.number(key, default=0, zero=True) for key in ("mscale", "mscale_all_dim")]
    temperature = yarn_attention_factor(factor, *mscales)
    return RopeConfig(
        theta=theta,
        type="yarn",
        factor=factor,
        original_max_positions=original,
        beta_fast=rope.number("beta_fast", default=32),
        beta_slow=rope.number("beta_slow", default=1),
        truncate=rope.flag("truncate", default=True),
        attention_factor=rope.number("attention_factor", default=temperature),
    )


def yarn_attention_factor(factor: float, mscale: float = 0, mscale_all_dim: float = 0) -> float:
    """Return YaRN's temperature on attention (arXiv 2309.00071, eq. 22): 0.1 ln(factor) + 1. With
    both mscales (DeepSeek's variant) it is the ratio of the two scaled temperatures."""
    if factor <= 1:
        return 1.0
    log = 0.1 * math.log(factor)
    if mscale and mscale_all_dim:
        return (mscale * log + 1) / (mscale_all_dim * log + 1)
    return log + 1
