"""The tensors that a checkpoint of a given config must hold, under their Hugging Face names."""

from __future__ import annotations

from paceline.models.batch import Part
from paceline.models.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
JOINED = {  # part of the forward -> the linear layers whose product it computes as one
    Part.QKV: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    Part.OUTPUT: ("self_attn.o_proj",),
    Part.GATE_UP: ("mlp.gate_proj", "mlp.up_proj"),
    Part.DOWN: ("mlp.down_proj",),
}


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor but a tied head; linear weights are [out, in]."""
    matrix = (config.vocab_size, config.hidden_size)
    tensors: dict[str, tuple[int, ...]] = {EMBEDDING: matrix, FINAL_NORM: matrix[1:]}
    for layer in range(config.num_layers):
        prefix = layer_prefix(layer)
        tensors |= {prefix + name: shape for name, shape in layer_tensors(config).items()}
    return tensors if config.tie_word_embeddings else tensors | {HEAD: matrix}


def layer_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of one layer's tensors, without the layer's prefix."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (q_size, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv_size, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv_size, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q_size, config.o_bias),
        "mlp.gate_proj": (ffn, hidden, config.mlp_bias),
        "mlp.up_proj": (ffn, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, ffn, config.mlp_bias),
    }
    tensors: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, (rows, columns, bias) in linears.items():
        tensors[f"{name}.weight"] = (rows, columns)
        if bias:
            tensors[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        tensors["self_attn.q_norm.weight"] = (config.head_dim,)
        tensors["self_attn.k_norm.weight"] = (config.head_dim,)
    return tensors
