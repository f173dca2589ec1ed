"""Scenarios that several tests predict."""

from __future__ import annotations

from typing import Any

MTP = {"kind": "mtp", "cost": 0.1, "acceptance": {"alpha": 0.75}}
DFLASH = {"kind": "dflash", "cost": 0.1, "block": 16, "acceptance": {"alpha": 0.89}}
DENSE: dict[str, Any] = {"model": "Qwen3-8B", "hardware": "B200", "drafters": [MTP, DFLASH]}
HYBRID = {**DENSE, "model": "Qwen3.5-27B"}
EXPERTS = {**DENSE, "model": "DeepSeek-V4-Pro", "batch": 32, "tensor_parallel": 8}
TINY = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 5120,
    "intermediate_size": 17408, "num_hidden_layers": 5, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 248320, "block_size": 16,
    "num_target_layers": 64, "dflash_config": {"target_layer_ids": [1, 16, 31, 46, 61]},
}  # fmt: skip
