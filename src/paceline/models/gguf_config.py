"""A GGUF file's metadata and tensor names, said in Hugging Face's words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from paceline.core import ModelError
from paceline.models.config import RopeConfig, yarn_attention_factor
from paceline.models.rope import rope_frequencies

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
ROPE_FACTORS = "rope_freqs.weight"

# The llama3 rope settings of published models: GGUF stores only the divisors that they amount to.
LLAMA3_ROPES = [
    RopeConfig(type="llama3", factor=factor, original_max_positions=8192) for factor in (8.0, 32.0)
]

Field = Callable[[str], Any]


def hf_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None for one that becomes part of the config.

    Raises ModelError for a name that none of the supported architectures has.
    """
    if name == ROPE_FACTORS:
        return None
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in LAYER_NAMES:
        raise ModelError(f"GGUF: tensor {name} is not supported by any known architecture")
    return f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.{match[3]}"


def hf_config(
    field: Field, shapes: dict[str, list[int]], rope_factors: np.ndarray | None
) -> dict[str, Any]:
    """The config.json of a GGUF file.

    `field` gives a metadata value or None; `shapes` the tensors' shapes as torch has them;
    `rope_factors` the tensor of that name. Raises ModelError for what cannot be served.
    """
    arch = field("general.architecture")
    if arch not in ARCHITECTURES:
        raise ModelError(
            f"GGUF: architecture {arch!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )

    def get(key: str, default: Any = None) -> Any:
        value = field(f"{arch}.{key}")
        return default if value is None else value

    if get("expert_count", 0):
        raise ModelError(
            f"GGUF: {arch}.expert_count is {get('expert_count')}; "
            "mixtures of experts are not supported"
        )
    heads, hidden = get("attention.head_count"), get("embedding_length")
    if isinstance(heads, list) or isinstance(get("attention.head_count_kv"), list):
        raise ModelError("GGUF: head counts that differ by layer are not supported")
    if not heads or not hidden:
        raise ModelError(f"GGUF: {arch}.attention.head_count or {arch}.embedding_length is missing")
    head_dim = get("attention.key_length", hidden // heads)
    if get("rope.dimension_count", head_dim) != head_dim:
        raise ModelError(
            f"GGUF: {arch}.rope.dimension_count is {get('rope.dimension_count')}; "
            f"only full rotary embedding ({head_dim}) is supported"
        )
    window = get("attention.sliding_window")
    config = {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "vocab_size": shapes.get("token_embd.weight", [0])[0],
        "hidden_size": hidden,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": _decimal(get("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": get("context_length"),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_up.bias" in shapes,
        "rope_parameters": _rope(get, head_dim, rope_factors),
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "dtype": "bfloat16",
    }
    # A file says that there is a window, not which layers have it. Up to its size none matters.
    if window:
        config["max_position_embeddings"] = min(window, config["max_position_embeddings"])
    return config


def _decimal(value: float | None) -> float | None:
    """The number a person wrote, 1e-05, from the float32 nearest to it, which GGUF stores."""
    return None if value is None else float(str(np.float32(value)))


def _rope(get: Field, head_dim: int, factors: np.ndarray | None) -> dict[str, Any]:
    theta = float(get("rope.freq_base") or 10000.0)
    kind = get("rope.scaling.type") or "none"
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if factors is not None:
        return _llama3(theta, head_dim, factors)
    if kind == "none":
        return rope
    if kind not in ("linear", "yarn"):
        raise ModelError(
            f"GGUF: rope.scaling.type {kind!r} is not supported; supported: none, linear, yarn"
        )
    rope |= {"rope_type": kind, "factor": float(get("rope.scaling.factor") or 1.0)}
    if kind == "linear":
        return rope
    # llama.cpp multiplies its own YaRN temperature by this, where transformers takes the product.
    extra = float(get("rope.scaling.attn_factor") or 1.0)
    return rope | {
        "original_max_position_embeddings": get("rope.scaling.original_context_length"),
        "beta_fast": float(get("rope.scaling.yarn_beta_fast") or 32),
        "beta_slow": float(get("rope.scaling.yarn_beta_slow") or 1),
        "attention_factor": extra * yarn_attention_factor(rope["factor"]),
    }


def _llama3(theta: float, head_dim: int, factors: np.ndarray) -> dict[str, Any]:
    """Recognises the settings whose frequencies, divided into the plain ones, give `factors`."""
    plain = rope_frequencies(RopeConfig(theta), head_dim)
    for known in LLAMA3_ROPES:
        rope = RopeConfig(theta, "llama3", known.factor, known.original_max_positions)
        divisors = plain / rope_frequencies(rope, head_dim)
        if len(factors) == len(divisors) and torch.allclose(
            torch.tensor(factors, dtype=torch.float32), divisors, rtol=1e-3
        ):
            return {
                "rope_type": "llama3",
                "rope_theta": theta,
                "factor": rope.factor,
                "low_freq_factor": rope.low_freq_factor,
                "high_freq_factor": rope.high_freq_factor,
                "original_max_position_embeddings": rope.original_max_positions,
            }
    raise ModelError(
        f"GGUF: {ROPE_FACTORS} holds rope factors (up to {factors.max():g}) of no known kind; "
        "supported: those of Llama 3.1 to 3.3 (factor 8 or 32 over 8192 positions)"
    )
