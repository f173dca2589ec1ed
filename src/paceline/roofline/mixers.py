"""Reading a layer's token mixer off a config: projections, attention, recurrent state."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.roofline.components import Attention, Component, Projection, Span
from paceline.roofline.fields import Fields
from paceline.roofline.precision import FORMATS

KINDS = ("full_attention", "sliding_attention")
Formats = Mapping[str, str]


def grouped_query(fields: Fields, formats: Formats, layer: int) -> tuple[Component, ...]:
    """Llama, Qwen2, Qwen3, Mixtral: P = H·n·d + 2·H·n_kv·d + n·d·H; all layers' spans alike."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    size = fields.integer("head_dim", default=hidden // heads)
    return (
        Projection("projections", 2 * hidden * size * (heads + kv_heads), formats["attention"]),
        gqa(heads, kv_heads, size, size, formats["kv"], span(fields, layer)),
    )


def gqa(
    heads: int, kv_heads: int, size: int, value_size: int, number: str, reach: Span
) -> Attention:
    """Scores over keys of `size`, and a sum of values of `value_size`, per head."""
    return Attention(
        pair_flops=2.0 * heads * (size + value_size),
        entry_bytes=kv_heads * (size + value_size) * FORMATS[number].bytes,
        kv_heads=kv_heads,
        spans=(reach,),
    )


def span(fields: Fields, layer: int) -> Span:
    """The layer's reach: all that came before it, or a window where the config uses one."""
    depth = fields.integer("num_hidden_layers")
    kinds = fields.names("layer_types", KINDS, depth)
    window = fields.get("sliding_window")
    if kinds is not None:
        sliding = kinds[min(layer, depth - 1)] == "sliding_attention"
    else:
        sliding = window is not None and fields.flag("use_sliding_window", default=True)
        sliding = sliding and layer < fields.integer("max_window_layers", default=depth)
    return Span(limit=fields.integer("sliding_window")) if sliding else Span()
