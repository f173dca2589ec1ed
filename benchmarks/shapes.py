"""Random weights in the shape of known models: for machines that have no model at hand."""

from __future__ import annotations

from typing import Any

from paceline.models.config import ModelConfig, RopeConfig
from paceline.models.loader import LoadedModel
from paceline.models.mocked import mocked_model

_QWEN: dict[str, Any] = {
    "family": "qwen2",
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "qkv_bias": True,
    "o_bias": False,
    "mlp_bias": False,
    "qk_norm": False,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32768,
    "rope": RopeConfig(theta=1e6),
}
SHAPES = {
    "qwen2.5-0.5b": ModelConfig(
        **_QWEN, hidden_size=896, intermediate_size=4864, num_layers=24, num_heads=14,
        num_kv_heads=2, head_dim=64,
    ),
    "qwen2.5-1.5b": ModelConfig(
        **_QWEN, hidden_size=1536, intermediate_size=8960, num_layers=28, num_heads=12,
        num_kv_heads=2, head_dim=128,
    ),
}  # fmt: skip


def random_model(shape: str, dtype: str) -> LoadedModel:
    """A model of that shape with random weights."""
    return mocked_model(SHAPES[shape], shape, dtype=dtype)
