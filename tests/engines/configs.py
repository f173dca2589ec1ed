"""Folders with the configs of targets and drafters, as the engines' tests need them."""

from __future__ import annotations

import json
from pathlib import Path

DFLASH: dict[str, object] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 8,
    "dflash_config": {"mask_token_id": 0, "target_layer_ids": [1, 2]},
    "num_target_layers": 4,
    "num_hidden_layers": 1,
    "layer_types": ["full_attention"],
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "vocab_size": 128,
}
SECOND = {"conv_kernel_size": 3, "conv_group_size": 4, "selector_rank": 8, "selector_top_k": 4}
DFLASH2 = {
    **DFLASH,
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": {"mask_token_id": 0, "target_layer_ids": [1, 2], **SECOND},
}
WINDOWED = {
    **DFLASH,
    "layer_types": ["sliding_attention"],
    "use_sliding_window": True,
    "sliding_window": 512,
    "max_window_layers": 0,
}
LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 8192,
}
HYBRID: dict[str, object] = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "layer_types": ["linear_attention", "full_attention"],
        "max_position_embeddings": 262144,
    },
}
LATENT = {**LLAMA, "model_type": "deepseek_v3", "kv_lora_rank": 512}


def folder(path: Path, config: dict[str, object]) -> Path:
    """Write a model's folder that holds its config alone."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path
