"""Tiny random targets of families that transformers computes, as it saves them: most of them are
not served by our engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from paceline.dataset.loops import MIN_TOKENS
from paceline.dataset.training_set import Manifest, TrainingRow, write_manifest, write_shard
from paceline.models.any_target import read_target
from paceline.models.loader import identity
from tests.engine.tiny import EOS, VOCAB, byte_tokenizer

BASE: dict[str, Any] = {
    "vocab_size": VOCAB + 8, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 512, "eos_token_id": EOS, "pad_token_id": 0, "bos_token_id": 0,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 2,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 8,  # of what is rotated
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
EYES = {"hidden_size": 32, "intermediate_size": 32}  # of the part that sees images
# family -> architecture, its config and what is special in it
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", EXPERTS),
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", LINEAR),
    "qwen3_5_moe": (
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeTextConfig",
        LINEAR | EXPERTS | {"shared_expert_intermediate_size": 32},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 16},
    ),
    "gemma4": (
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 16,
            "global_head_dim": 32,  # of layers with full attention
            "hidden_size_per_layer_input": 0,
            "tie_word_embeddings": False,  # tied, random ones say the last token again
        },
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 16,
        },
    ),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {}),
    "mistral_window": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 16}),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", LATENT),
    "qwen3_5_images": (
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5Config",
        LINEAR | {"vision_config": {"depth": 1, "num_heads": 2, "out_hidden_size": 64} | EYES},
    ),
    "kimi_k25": (
        "Kimi_K25ForConditionalGeneration",
        "Kimi_K25Config",
        LATENT
        | {"model_type": "deepseek_v3"}
        | {"vision_config": {"num_hidden_layers": 1, "num_attention_heads": 2} | EYES},
    ),
}
SERVED = ("mistral", "mistral_window")  # by our engine as well, up to the window


def save_foreign(folder: Path, family: str, seed: int = 0) -> Path:
    """Write a tiny random target of the family into `folder`."""
    architecture, config_name, special = FAMILIES[family]
    torch.manual_seed(seed)
    sizes = BASE | special
    if eyes := sizes.pop("vision_config", None):  # the sizes above are of the part that reads text
        sizes = {"text_config": sizes, "vision_config": eyes, "tie_word_embeddings": False}
    config = getattr(transformers, config_name)(**sizes)
    model = getattr(transformers, architecture)(config).float()
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def write_random_set(folder: Path, target: Path, rows: int = 12, tokens: int = 40) -> Path:
    """Write texts of random tokens: a drafter can only know them by heart."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(5)
    made = []
    for index in range(rows):
        ids = torch.randint(4, 240, (tokens,), generator=generator).tolist()
        pieces = range(4, tokens, MIN_TOKENS - 1)  # longer ones might be taken for loops
        spans = tuple((at, min(at + MIN_TOKENS - 1, tokens)) for at in pieces)
        made.append(
            TrainingRow(
                tuple(ids), spans, f"r#{index}", "on_task", "en", "stop", 0.0, 0, f"{index}"
            )
        )
    shards = [
        write_shard(folder, "train", 0, made[:-4]),
        write_shard(folder, "held_out", 0, made[-4:]),
    ]
    app = {"description": {"name": folder.name}, "sources": []}
    target_identity = identity(read_target(str(target)))
    write_manifest(folder, Manifest(target=target_identity, app=app, shards=shards))
    return folder
