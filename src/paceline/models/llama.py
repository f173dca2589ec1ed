"""Llama (SmolLM2, Llama 2 and 3.x) and Mistral: the same network, but for biases and the window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.models.config import ModelConfig, integer, read_config

# What MistralConfig assumes when a config does not mention its window; null there means none.
MISTRAL_DEFAULT_WINDOW = 4096


def read_llama(hf: Mapping[str, Any]) -> ModelConfig:
    """`attention_bias` means all four attention projections, `mlp_bias` all three of the MLP."""
    attention_bias = bool(hf.get("attention_bias", False))
    return read_config(
        hf,
        "llama",
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        mlp_bias=bool(hf.get("mlp_bias", False)),
    )


def read_mistral(hf: Mapping[str, Any]) -> ModelConfig:
    """Mistral attends through one window in every layer, unless `sliding_window` is null."""
    window: int | None = MISTRAL_DEFAULT_WINDOW
    if "sliding_window" in hf:
        window = None if hf["sliding_window"] is None else integer(hf, "sliding_window")
    return read_config(hf, "mistral", sliding_window=window)
