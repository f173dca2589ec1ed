"""Reading a layer's feed-forward half off a config: dense, or experts with a router."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.roofline.components import Component, Experts, Projection
from paceline.roofline.fields import Fields

Formats = Mapping[str, str]


def dense(fields: Fields, formats: Formats, layer: int) -> tuple[Component, ...]:
    """SwiGLU: P = 3·H·I."""
    width = fields.integer("hidden_size") * fields.integer("intermediate_size")
    return (Projection("feed_forward", 3 * width, formats["feed_forward"]),)


def mixture(fields: Fields, formats: Formats, layer: int) -> tuple[Component, ...]:
    """A router (H·E, in bf16) and E experts of 3·H·I, k of them per row."""
    hidden = fields.integer("hidden_size")
    width = fields.integer("moe_intermediate_size", "intermediate_size")
    experts = fields.integer("num_experts", "num_local_experts", "n_routed_experts")
    active = fields.integer("num_experts_per_tok", "experts_per_token")
    return (
        Projection("router", hidden * experts),
        Experts(experts, active, 3 * hidden * width, formats["experts"]),
    )
