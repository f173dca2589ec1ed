"""Qwen2 and Qwen2.5 (Coder included): Llama with biases on the q, k and v projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.models.config import ModelConfig, integer, read_config


def read_qwen2(hf: Mapping[str, Any]) -> ModelConfig:
    return read_config(hf, "qwen2", qkv_bias=True, sliding_window=read_window(hf))


def read_window(hf: Mapping[str, Any]) -> int | None:
    """The window, when `use_sliding_window` is set and some layer has one.

    `layer_types` says which do; without it, every layer from `max_window_layers` on.
    """
    if not hf.get("use_sliding_window") or hf.get("sliding_window", 4096) is None:
        return None
    if hf.get("layer_types"):
        windowed = "sliding_attention" in hf["layer_types"]
    else:
        windowed = hf.get("max_window_layers", 28) < integer(hf, "num_hidden_layers")
    return integer(hf, "sliding_window", 4096) if windowed else None
