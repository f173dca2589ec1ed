"""Read a layer's token mixer off a config: projections, attention, recurrent state.

H hidden size, n query heads, n_kv key and value heads, d their size. Biases and norms are left
out: together less than 0.1 % of a model. A layer's index one past the last asks for the model's
own draft layer.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.errors import ModelError
from paceline.roofline.architecture.components import (
    CacheAttention,
    Component,
    Projection,
    Reach,
    State,
)
from paceline.roofline.architecture.config import ConfigFields
from paceline.roofline.device import FORMATS

KINDS = ("full_attention", "sliding_attention")
HYBRID_KINDS = ("full_attention", "linear_attention")
Formats = Mapping[str, str]


def grouped_query(fields: ConfigFields, formats: Formats, layer: int) -> tuple[Component, ...]:
    """Llama, Qwen, Mixtral, gpt-oss, MiniMax: P = 2·H·n·d + 2·H·n_kv·d."""
    heads, kv_heads, size = _heads(fields)
    weights = 2 * fields.integer("hidden_size") * size * (heads + kv_heads)
    return (
        Projection("projections", weights, formats["attention"]),
        _attention(heads, kv_heads, size, formats["kv"], _reach(fields, layer)),
    )


def alternating(fields: ConfigFields, formats: Formats, layer: int) -> tuple[Component, ...]:
    """gpt-oss: as `grouped_query`, with windows in those layers that `layer_types` names."""
    _check_kinds(fields)
    return grouped_query(fields, formats, layer)


def hybrid(fields: ConfigFields, formats: Formats, layer: int) -> tuple[Component, ...]:
    """Qwen3-Next, Qwen3.5: gated delta layers, and attention whose output is gated (the query
    projection is twice as wide)."""
    depth = fields.integer("num_hidden_layers")
    kinds = fields.names("layer_types", HYBRID_KINDS, depth)
    if kinds is None:
        every = fields.integer("full_attention_interval", default=4)
        kinds = tuple(HYBRID_KINDS[int((i + 1) % every != 0)] for i in range(depth))
    if layer < depth and kinds[layer] == "linear_attention":
        return _gated_delta(fields, formats)
    heads, kv_heads, size = _heads(fields)
    gate = heads if fields.flag("attn_output_gate", default=True) else 0
    weights = fields.integer("hidden_size") * size * (2 * heads + 2 * kv_heads + gate)
    return (
        Projection("projections", weights, formats["attention"]),
        _attention(heads, kv_heads, size, formats["kv"], Reach()),
    )


def _gated_delta(fields: ConfigFields, formats: Formats) -> tuple[Component, ...]:
    """P = H·(2K + V) + H·V + 2·H·n_v + V·H, with K, V the widths of all keys and all values."""
    hidden = fields.integer("hidden_size")
    key_size = fields.integer("linear_key_head_dim")
    value_size = fields.integer("linear_value_head_dim")
    value_heads = fields.integer("linear_num_value_heads")
    keys = key_size * fields.integer("linear_num_key_heads")
    values = value_size * value_heads
    weights = hidden * (2 * keys + 3 * values + 2 * value_heads)
    state = State(
        elements=value_heads * key_size * value_size,
        heads=value_heads,
        replayed_elements=keys + values + 2 * value_heads,
        format=formats["state"],
    )
    return Projection("projections", weights, formats["attention"]), state


def latent(fields: ConfigFields, formats: Formats, layer: int) -> tuple[Component, ...]:
    """Multi-head latent attention (DeepSeek-V3, Kimi-K2), absorbed as in decoding.

    P = H·r_q + r_q·n·(d_nope + d_rope) + H·(r_kv + d_rope) + r_kv·n·(d_nope + d_v) + n·d_v·H;
    2n·(2·r_kv + d_rope) FLOP per pair; one latent per token, which every device keeps.
    """
    return _latent(fields, formats, Reach())


def sparse_latent(fields: ConfigFields, formats: Formats, layer: int) -> tuple[Component, ...]:
    """Latent attention to the entries that an indexer chooses (DeepSeek-V3.2, GLM-5)."""
    top = fields.integer("index_topk")
    return (
        *_latent(fields, formats, Reach(limit=top, chosen=True)),
        *_indexer(fields, formats, ratio=1, scale_bytes=4),
    )


def _latent(fields: ConfigFields, formats: Formats, reach: Reach) -> tuple[Component, ...]:
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    rank, rotary = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    plain, value = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    query_rank = fields.integer("q_lora_rank", default=0, low=0)
    query = heads * (plain + rotary)
    weights = query_rank * (hidden + query) if query_rank else hidden * query
    weights += hidden * (rank + rotary) + rank * heads * (plain + value) + heads * value * hidden
    number = FORMATS[formats["kv"]]
    eight_bits = formats["kv"] == "fp8"
    # an fp8 cache keeps the rotary part in bf16, and a float32 scale per 128 numbers
    entry = rank + rank // 128 * 4 + 2 * rotary if eight_bits else (rank + rotary) * number.bytes
    return (
        Projection("projections", weights, formats["attention"]),
        CacheAttention(2.0 * heads * (2 * rank + rotary), entry, kv_heads=1, reaches=(reach,)),
    )


def _indexer(
    fields: ConfigFields, formats: Formats, ratio: int, scale_bytes: int
) -> tuple[Component, ...]:
    """P = r_q·n_i·d_i + H·d_i + H·n_i; scores in fp8 over keys of one head."""
    hidden, query_rank = fields.integer("hidden_size"), fields.integer("q_lora_rank")
    heads, size = fields.integer("index_n_heads"), fields.integer("index_head_dim")
    key = hidden * size * (1 if ratio == 1 else 2)  # compressed keys have a gate
    weights = query_rank * heads * size + key + hidden * heads
    scores = CacheAttention(
        pair_flops=2.0 * heads * size,
        entry_bytes=size + scale_bytes,
        kv_heads=1,
        reaches=(Reach(ratio=ratio),),
        precision="fp8",
        name="indexer",
    )
    return Projection("projections", weights, formats["attention"]), scores


def compressed(fields: ConfigFields, formats: Formats, layer: int) -> tuple[Component, ...]:
    """DeepSeek-V4: one latent head, key and value at once, over a window and over compressed
    entries: 4 tokens each, chosen by an indexer (CSA), or 128 tokens each (HCA), or none.

    P = H·r_q + r_q·n·d + H·d + n·d·r_o + g·r_o·H, and the compressors'. Hyper-connections are left
    out (under 0.1 % of the weights).
    """
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    size, query_rank = fields.integer("head_dim"), fields.integer("q_lora_rank")
    output_rank, groups = fields.integer("o_lora_rank"), fields.integer("o_groups")
    weights = query_rank * (hidden + heads * size) + hidden * size
    weights += output_rank * (heads * size + groups * hidden)
    depth = fields.integer("num_hidden_layers")
    ratio = fields.integers("compress_ratios", depth)[layer] if layer < depth else 0
    window = Reach(limit=fields.integer("sliding_window"))
    indexer: tuple[Component, ...] = ()
    reaches: tuple[Reach, ...] = (window,)
    if ratio == 4:
        weights += 2 * hidden * 2 * size
        reaches = (window, Reach(ratio=4, limit=fields.integer("index_topk"), chosen=True))
        indexer = _indexer(fields, formats, ratio=4, scale_bytes=0)
    elif ratio == 128:
        weights += 2 * hidden * size
        reaches = (window, Reach(ratio=128))
    elif ratio:
        raise ModelError(f"config: compress_ratios has {ratio}; expected 0, 4 or 128")
    rotary = fields.integer("qk_rope_head_dim")
    number = FORMATS[formats["kv"]].bytes
    # an fp8 cache keeps the rotary part in bf16
    entry = size + rotary if formats["kv"] == "fp8" else size * number
    return (
        Projection("projections", weights, formats["attention"]),
        CacheAttention(2.0 * heads * 2 * size, entry, kv_heads=1, reaches=reaches),
        *indexer,
    )


def gemma(fields: ConfigFields, formats: Formats, layer: int) -> tuple[Component, ...]:
    """Gemma 4: windowed layers, and global ones with heads of their own size whose keys and values
    come from one projection (`attention_k_eq_v`)."""
    for name in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if fields.get(name):
            raise ModelError(f"config: {name} is {fields.get(name)!r}; only 0 is modelled")
    _check_kinds(fields)
    reach = _reach(fields, layer)
    heads, kv_heads, size = _heads(fields)
    matrices = 2
    if reach.limit is None:
        size = fields.integer("global_head_dim", default=size)
        if fields.flag("attention_k_eq_v"):
            kv_heads = fields.integer("num_global_key_value_heads", default=kv_heads)
            matrices = 1
    weights = fields.integer("hidden_size") * size * (2 * heads + matrices * kv_heads)
    return (
        Projection("projections", weights, formats["attention"]),
        _attention(heads, kv_heads, size, formats["kv"], reach),
    )


def _check_kinds(fields: ConfigFields) -> None:
    if fields.get("layer_types") is None:
        raise ModelError("config: layer_types is missing; expected the kind of each layer")


def _heads(fields: ConfigFields) -> tuple[int, int, int]:
    """(query heads, key and value heads, size of a head)."""
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ModelError(
            f"config: num_key_value_heads is {kv_heads}; expected a divisor of the {heads} heads"
        )
    return (
        heads,
        kv_heads,
        fields.integer("head_dim", default=fields.integer("hidden_size") // heads),
    )


def _attention(heads: int, kv_heads: int, size: int, number: str, reach: Reach) -> CacheAttention:
    """4·n·d FLOP per pair (scores and values); 2·n_kv·d numbers per entry."""
    entry = 2 * kv_heads * size * FORMATS[number].bytes
    return CacheAttention(4.0 * heads * size, entry, kv_heads, reaches=(reach,))


def _reach(fields: ConfigFields, layer: int) -> Reach:
    """The layer's reach: all that came before it, or a window where the config uses one."""
    depth = fields.integer("num_hidden_layers")
    kinds = fields.names("layer_types", KINDS, depth)
    if kinds is not None:
        sliding = kinds[min(layer, depth - 1)] == "sliding_attention"
    else:
        sliding = fields.get("sliding_window") is not None
        sliding = sliding and fields.flag("use_sliding_window", default=True)
        sliding = sliding and layer >= fields.integer("max_window_layers", default=0, low=0)
    return Reach(limit=fields.integer("sliding_window")) if sliding else Reach()
