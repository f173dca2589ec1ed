"""Read the two halves of a layer off a config: the token mixer, and the feed-forward.

H hidden size, n query heads, n_kv key and value heads, d their size, I intermediate size. Biases
and norms are left out: together less than 0.1 % of a model. A layer's index one past the last asks
for the model's own draft layer.
"""

from __future__ import annotations

from paceline.core.errors import ModelError
from paceline.roofline.architecture.components import (
    CacheAttention,
    Component,
    Experts,
    Projection,
    Reach,
    State,
)
from paceline.roofline.architecture.config import LayeredConfig
from paceline.roofline.device import FORMATS

Components = tuple[Component, ...]
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts")


def grouped_query(fields: LayeredConfig, layer: int) -> Components:
    """Llama, Qwen, Mixtral, gpt-oss, MiniMax: P = 2·H·n·d + 2·H·n_kv·d."""
    heads, kv_heads, size = _heads(fields)
    weights = 2 * fields.integer("hidden_size") * size * (heads + kv_heads)
    attention = _attention(fields, heads, kv_heads, size, _reach(fields, layer))
    return _projections(fields, weights), attention


def alternating(fields: LayeredConfig, layer: int) -> Components:
    """gpt-oss: as `grouped_query`, with windows in those layers that `layer_types` names."""
    _check_kinds(fields)
    return grouped_query(fields, layer)


def hybrid(fields: LayeredConfig, layer: int) -> Components:
    """Qwen3-Next, Qwen3.5: gated delta layers, and attention whose output is gated (the query
    projection is twice as wide)."""
    depth, kinds = fields.depth, fields.kinds("full_attention", "linear_attention")
    if kinds is None:
        recurrent = (layer + 1) % fields.integer("full_attention_interval", default=4) != 0
    else:
        recurrent = kinds[min(layer, depth - 1)] == "linear_attention"
    if layer < depth and recurrent:
        return _gated_delta(fields)
    heads, kv_heads, size = _heads(fields)
    gate = heads if fields.flag("attn_output_gate", default=True) else 0
    weights = fields.integer("hidden_size") * size * (2 * heads + 2 * kv_heads + gate)
    attention = _attention(fields, heads, kv_heads, size, Reach())
    return _projections(fields, weights), attention


def _gated_delta(fields: LayeredConfig) -> Components:
    """P = H·(2K + V) + H·V + 2·H·n_v + V·H, with K, V the widths of all keys and all values."""
    hidden = fields.integer("hidden_size")
    key_size = fields.integer("linear_key_head_dim")
    value_size = fields.integer("linear_value_head_dim")
    value_heads = fields.integer("linear_num_value_heads")
    keys = key_size * fields.integer("linear_num_key_heads")
    values = value_size * value_heads
    state = State(
        elements=value_heads * key_size * value_size,
        heads=value_heads,
        replayed_elements=keys + values + 2 * value_heads,
        format=fields.formats["state"],
    )
    return _projections(fields, hidden * (2 * keys + 3 * values + 2 * value_heads)), state


def latent(fields: LayeredConfig, layer: int) -> Components:
    """Multi-head latent attention (DeepSeek-V3, Kimi-K2), absorbed as in decoding.

    P = H·r_q + r_q·n·(d_nope + d_rope) + H·(r_kv + d_rope) + r_kv·n·(d_nope + d_v) + n·d_v·H;
    2n·(2·r_kv + d_rope) FLOP per pair; one latent per token, which every device keeps.
    """
    return _latent(fields, Reach())


def sparse_latent(fields: LayeredConfig, layer: int) -> Components:
    """Latent attention to the entries that an indexer chooses (DeepSeek-V3.2, GLM-5)."""
    chosen = Reach(limit=fields.integer("index_topk"), chosen=True)
    return *_latent(fields, chosen), *_indexer(fields, ratio=1, scale_bytes=4)


def _latent(fields: LayeredConfig, reach: Reach) -> Components:
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    rank, rotary = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    plain, value = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    query_rank = fields.integer("q_lora_rank", default=0, low=0)
    query = heads * (plain + rotary)
    weights = query_rank * (hidden + query) if query_rank else hidden * query
    weights += hidden * (rank + rotary) + rank * heads * (plain + value) + heads * value * hidden
    entry = (rank + rotary) * FORMATS[fields.formats["kv"]].bytes
    if fields.formats["kv"] == "fp8":  # the rotary part in bf16, a float32 scale per 128 numbers
        entry = rank + rank // 128 * 4 + 2 * rotary
    attention = CacheAttention(2.0 * heads * (2 * rank + rotary), entry, 1, reaches=(reach,))
    return _projections(fields, weights), attention


def _indexer(fields: LayeredConfig, ratio: int, scale_bytes: int) -> Components:
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
    return _projections(fields, weights), scores


def compressed(fields: LayeredConfig, layer: int) -> Components:
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
    ratio = _compress_ratio(fields, layer)
    reaches: tuple[Reach, ...] = (Reach(limit=fields.integer("sliding_window")),)
    indexer: Components = ()
    if ratio == 4:
        weights += 2 * hidden * 2 * size
        reaches += (Reach(ratio=4, limit=fields.integer("index_topk"), chosen=True),)
        indexer = _indexer(fields, ratio=4, scale_bytes=0)
    elif ratio == 128:
        weights += 2 * hidden * size
        reaches += (Reach(ratio=128),)
    rotary, number = fields.integer("qk_rope_head_dim"), fields.formats["kv"]
    # an fp8 cache keeps the rotary part in bf16
    entry = size + rotary if number == "fp8" else size * FORMATS[number].bytes
    attention = CacheAttention(2.0 * heads * 2 * size, entry, kv_heads=1, reaches=reaches)
    return _projections(fields, weights), attention, *indexer


def _compress_ratio(fields: LayeredConfig, layer: int) -> int:
    """Tokens of each compressed entry of a layer; 0 where it has none, as the draft layer."""
    if layer >= fields.depth:
        return 0
    ratio = fields.by_layer("compress_ratios")[layer]
    if isinstance(ratio, int) and ratio in (0, 4, 128):
        return ratio
    raise ModelError(f"config: compress_ratios has {ratio!r:.40}; expected 0, 4 or 128")


def gemma(fields: LayeredConfig, layer: int) -> Components:
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
    return _projections(fields, weights), _attention(fields, heads, kv_heads, size, reach)


def _projections(fields: LayeredConfig, weights: int) -> Projection:
    return Projection("projections", weights, fields.formats["attention"])


def _check_kinds(fields: LayeredConfig) -> None:
    if fields.get("layer_types") is None:
        raise ModelError("config: layer_types is missing; expected the kind of each layer")


def _heads(fields: LayeredConfig) -> tuple[int, int, int]:
    """(query heads, key and value heads, size of a head)."""
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        expected = f"a divisor of the {heads} heads"
        raise ModelError(f"config: num_key_value_heads is {kv_heads}; expected {expected}")
    size = fields.integer("head_dim", default=fields.integer("hidden_size") // heads)
    return heads, kv_heads, size


def _attention(
    fields: LayeredConfig, heads: int, kv_heads: int, size: int, reach: Reach
) -> CacheAttention:
    """4·n·d FLOP per pair (scores and values); 2·n_kv·d numbers per entry."""
    entry = 2 * kv_heads * size * FORMATS[fields.formats["kv"]].bytes
    return CacheAttention(4.0 * heads * size, entry, kv_heads, reaches=(reach,))


def _reach(fields: LayeredConfig, layer: int) -> Reach:
    """The layer's reach: all that came before it, or a window where the config uses one."""
    kinds = fields.kinds("full_attention", "sliding_attention")
    if kinds is not None:
        sliding = kinds[min(layer, len(kinds) - 1)] == "sliding_attention"
    else:
        sliding = fields.has("sliding_window") and fields.flag("use_sliding_window", default=True)
        sliding = sliding and layer >= fields.integer("max_window_layers", default=0, low=0)
    return Reach(limit=fields.integer("sliding_window")) if sliding else Reach()


# -- feed-forward ----------------------------------------------------------------------------------


def dense(fields: LayeredConfig, layer: int) -> Components:
    """SwiGLU: P = 3·H·I."""
    weights = 3 * fields.integer("hidden_size") * fields.integer("intermediate_size")
    return (Projection("feed_forward", weights, fields.formats["feed_forward"]),)


def mixture(fields: LayeredConfig, layer: int) -> Components:
    """A router (H·E, in bf16), E experts of 3·H·I with k of them per row, shared experts that every
    row passes; or a dense layer, where the config has some."""
    if _is_dense(fields, layer):
        return dense(fields, layer)
    hidden = fields.integer("hidden_size")
    width = fields.integer("moe_intermediate_size", "intermediate_size")
    experts, active = fields.integer(*_EXPERTS), fields.integer(*_ACTIVE)
    if active > experts:
        raise ModelError(f"config: {active} active experts per token of {experts}")
    routed = Experts(experts, active, 3 * hidden * width * experts, fields.formats["experts"])
    # the first layers may pick experts by a hash of the token: nothing to compute
    hashed = layer < fields.integer("num_hash_layers", default=0, low=0)
    router = () if hashed else (Projection("router", hidden * experts),)
    return *router, routed, *_shared(fields, width)


def mixture_beside_dense(fields: LayeredConfig, layer: int) -> Components:
    """Gemma 4: in each layer a dense half and experts, added up."""
    both = fields.flag("enable_moe_block")
    return dense(fields, layer) + (mixture(fields, layer) if both else ())


def _shared(fields: LayeredConfig, width: int) -> Components:
    """Shared experts: so many of the routed ones' size, or one of a size of its own and a gate."""
    hidden = fields.integer("hidden_size")
    count = fields.integer("n_shared_experts", "num_shared_experts", default=0, low=0)
    single = fields.integer("shared_expert_intermediate_size", default=0, low=0)
    if fields.get("shared_intermediate_size"):
        raise ModelError("config: shared_intermediate_size is not modelled; only 0 is")
    weights = 3 * hidden * (count * width + single) + (hidden if single else 0)
    shared = Projection("shared_experts", weights, fields.formats["shared_experts"])
    return (shared,) if weights else ()


def _is_dense(fields: LayeredConfig, layer: int) -> bool:
    """Return whether this layer of a mixture is dense. A draft layer is like the last."""
    layer = min(layer, fields.depth - 1)
    if layer < fields.integer("first_k_dense_replace", default=0, low=0):
        return True
    if layer in (fields.get("mlp_only_layers") or ()):
        return True
    step = fields.integer("decoder_sparse_step", "moe_layer_freq", default=1)
    return (layer + 1) % step != 0 if fields.get("decoder_sparse_step") else layer % step != 0
