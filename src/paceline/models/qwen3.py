"""Qwen3 dense: per-head RMS norm on q and k, and a head size of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.models.config import ModelConfig, read_config
from paceline.models.qwen2 import read_window


def read_qwen3(hf: Mapping[str, Any]) -> ModelConfig:
    """`attention_bias` means all four attention projections; published models have none."""
    attention_bias = bool(hf.get("attention_bias", False))
    return read_config(
        hf,
        "qwen3",
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        qk_norm=True,
        head_dim=128,
        sliding_window=read_window(hf),
    )
