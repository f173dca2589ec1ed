"""Read a layer's feed-forward half off a config: dense, or experts with a router.

H hidden size, I intermediate size. The router is in bf16 whatever the experts are in.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.errors import ModelError
from paceline.roofline.architecture.components import Component, Experts, Projection
from paceline.roofline.architecture.config import ConfigFields

Formats = Mapping[str, str]
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts")


def dense(fields: ConfigFields, formats: Formats, layer: int) -> tuple[Component, ...]:
    """SwiGLU: P = 3·H·I."""
    return _dense(fields, formats, "intermediate_size")


def mixture(fields: ConfigFields, formats: Formats, layer: int) -> tuple[Component, ...]:
    """A router (H·E), E experts of 3·H·I with k of them per row, shared experts that every row
    passes; or a dense layer, where the config has some."""
    if _is_dense(fields, layer):
        return dense(fields, formats, layer)
    hidden = fields.integer("hidden_size")
    width = fields.integer("moe_intermediate_size", "intermediate_size")
    experts, active = fields.integer(*_EXPERTS), fields.integer(*_ACTIVE)
    if active > experts:
        raise ModelError(f"config: {active} active experts per token of {experts}")
    routed = Experts(experts, active, 3 * hidden * width, formats["experts"])
    # the first layers may pick experts by a hash of the token: nothing to compute
    hashed = layer < fields.integer("num_hash_layers", default=0, low=0)
    router = () if hashed else (Projection("router", hidden * experts),)
    return (*router, routed, *_shared(fields, formats, width))


def mixture_beside_dense(
    fields: ConfigFields, formats: Formats, layer: int
) -> tuple[Component, ...]:
    """Gemma 4: in each layer a dense half and experts, added up."""
    if not fields.flag("enable_moe_block"):
        return dense(fields, formats, layer)
    return dense(fields, formats, layer) + mixture(fields, formats, layer)


def _dense(fields: ConfigFields, formats: Formats, width: str) -> tuple[Component, ...]:
    weights = 3 * fields.integer("hidden_size") * fields.integer(width)
    return (Projection("feed_forward", weights, formats["feed_forward"]),)


def _shared(fields: ConfigFields, formats: Formats, width: int) -> tuple[Component, ...]:
    """Shared experts: so many of the routed ones' size, or one of a size of its own and a gate."""
    hidden = fields.integer("hidden_size")
    count = fields.integer("n_shared_experts", "num_shared_experts", default=0, low=0)
    single = fields.integer("shared_expert_intermediate_size", default=0, low=0)
    if fields.get("shared_intermediate_size"):
        raise ModelError("config: shared_intermediate_size is not modelled; only 0 is")
    weights = 3 * hidden * (count * width + single) + (hidden if single else 0)
    if not weights:
        return ()
    return (Projection("shared_experts", weights, formats["shared_experts"]),)


def _is_dense(fields: ConfigFields, layer: int) -> bool:
    """Return whether this layer of a mixture is dense. A draft layer is like the last."""
    layer = min(layer, fields.integer("num_hidden_layers") - 1)
    if layer < fields.integer("first_k_dense_replace", default=0, low=0):
        return True
    if layer in (fields.get("mlp_only_layers") or ()):
        return True
    step = fields.integer("decoder_sparse_step", "moe_layer_freq", default=1)
    return (layer + 1) % step != 0 if fields.get("decoder_sparse_step") else layer % step != 0
