"""Translate a GGUF file's metadata and tensor names into Hugging Face's words."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import torch

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields
from paceline.models.families import GGUF_FAMILIES
from paceline.models.rope import RopeConfig, rope_frequencies, yarn_attention_factor

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
LLAMA3_FACTORS = (8.0, 32.0)
LLAMA3_ROPE = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_POSITIONS = 8192


def hf_name(name: str) -> str | None:
    """Return the Hugging Face name of a GGUF tensor; None for one that becomes part of the config.
    Raises ModelError for a name that none of the supported architectures has."""
    if name == ROPE_FACTORS:
        return None
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in LAYER_NAMES:
        raise ModelError(f"GGUF: tensor {name} is not supported by any known architecture")
    return f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.{match[3]}"


def hf_config(
    metadata: Mapping[str, object], shapes: Mapping[str, list[int]], rope_factors: np.ndarray | None
) -> dict[str, object]:
    """Return the config.json of a GGUF file of these values and tensors, with shapes as torch has
    them. Raises ModelError for what cannot be served."""
    arch = str(metadata.get("general.architecture"))
    if arch not in GGUF_FAMILIES:
        supported = ", ".join(GGUF_FAMILIES)
        raise ModelError(f"GGUF: architecture {arch!r} is not supported; supported: {supported}")
    prefix = f"{arch}."
    values = {key.removeprefix(prefix): value for key, value in metadata.items()}
    fields = ConfigFields(values, "GGUF", prefix)
    if experts := fields.get("expert_count"):
        expected = "none: mixtures of experts are not supported"
        raise fields.error("expert_count", experts, expected)
    heads, kv_heads, head_dim = _heads(fields)
    context = fields.integer("context_length")
    # A file says that there is a window, not which layers have it. Up to its size none matters.
    window = fields.integer("attention.sliding_window", default=0, low=0)
    return {
        "architectures": [GGUF_FAMILIES[arch].architecture],
        "model_type": arch,
        "vocab_size": shapes.get("token_embd.weight", [0])[0],
        "hidden_size": fields.integer("embedding_length"),
        "intermediate_size": fields.get("feed_forward_length"),
        "num_hidden_layers": fields.get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": _decimal(fields.get("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": min(window or context, context),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_up.bias" in shapes,
        "rope_parameters": _rope(fields, head_dim, rope_factors),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "dtype": "bfloat16",
    }


def _heads(fields: ConfigFields) -> tuple[int, int, int]:
    """Return the numbers of query heads and of KV heads, and the size of a head."""
    names = ("attention.head_count", "attention.head_count_kv")
    if any(isinstance(fields.get(name), list) for name in names):
        raise ModelError("GGUF: head counts that differ by layer are not supported")
    heads = fields.integer(names[0])
    kv_heads = fields.integer(names[1], default=heads)
    hidden = fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", default=hidden // heads)
    rotated = fields.integer("rope.dimension_count", default=head_dim)
    if rotated != head_dim:
        expected = f"{head_dim}: only full rotary embedding is supported"
        raise fields.error("rope.dimension_count", rotated, expected)
    return heads, kv_heads, head_dim


def _decimal(value: float | None) -> float | None:
    """Return the number a person wrote, 1e-05, from the float32 nearest to it, which GGUF has."""
    return None if value is None else float(str(np.float32(value)))


def _rope(fields: ConfigFields, head_dim: int, factors: np.ndarray | None) -> dict[str, object]:
    theta = fields.number("rope.freq_base", default=10000.0)
    kind = fields.get("rope.scaling.type") or "none"
    if factors is not None:
        return _llama3(theta, head_dim, factors)
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    factor = fields.number("rope.scaling.factor", default=1.0)
    rope = {"rope_type": kind, "rope_theta": theta, "factor": factor}
    if kind == "linear":
        return rope
    if kind != "yarn":
        raise ModelError(
            f"GGUF: rope.scaling.type {kind!r} is not supported; supported: none, linear, yarn"
        )
    # llama.cpp multiplies its own YaRN temperature by this, where transformers takes the product.
    extra = fields.number("rope.scaling.attn_factor", default=1.0)
    return rope | {
        "original_max_position_embeddings": fields.get("rope.scaling.original_context_length"),
        "beta_fast": fields.number("rope.scaling.yarn_beta_fast", default=32),
        "beta_slow": fields.number("rope.scaling.yarn_beta_slow", default=1),
        "attention_factor": extra * yarn_attention_factor(factor),
    }


def _llama3(theta: float, head_dim: int, factors: np.ndarray) -> dict[str, object]:
    """Recognise the settings whose frequencies, divided into the plain ones, give `factors`."""
    plain = rope_frequencies(RopeConfig(theta), head_dim)
    for factor in LLAMA3_FACTORS:
        rope = RopeConfig(theta, "llama3", factor, LLAMA3_POSITIONS)
        divisors = plain / rope_frequencies(rope, head_dim)
        if len(factors) == len(divisors) and torch.allclose(
            torch.tensor(factors, dtype=torch.float32), divisors, rtol=1e-3
        ):
            context = {"original_max_position_embeddings": LLAMA3_POSITIONS}
            return {**LLAMA3_ROPE, "rope_theta": theta, "factor": factor, **context}
    raise ModelError(
        f"GGUF: {ROPE_FACTORS} holds rope factors (up to {factors.max():g}) of no known kind; "
        "supported: those of Llama 3.1 to 3.3 (factor 8 or 32 over 8192 positions)"
    )
