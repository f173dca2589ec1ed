"""Read drafters off configs: the model's own MTP layer, EAGLE heads, small models, DFlash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.core.errors import InvalidRequest, ModelError
from paceline.roofline.architecture import Architecture, Layers, load_config, read_architecture
from paceline.roofline.architecture.components import Component, Projection, Sampling
from paceline.roofline.architecture.config import ConfigFields
from paceline.roofline.cost.drafting import DrafterCost, token_by_token, whole_block

Config = Mapping[str, Any] | str | Path


def mtp(target: Architecture, name: str = "mtp") -> DrafterCost:
    """The target's own draft layer, once per drafted token, with the target's head.

    Raises InvalidRequest for a target that has none.
    """
    if not target.draft_layer:
        expected = f"a drafter that {target.name} has: its config states no draft layer"
        raise InvalidRequest("drafter", "mtp", expected)
    network = _part(target, (Layers(1, target.draft_layer),), ())
    return token_by_token(name, network, _part(target, (), target.head))


def small_model(
    config: Config, *, precision: str | Mapping[str, str] | None = None, name: str = "draft model"
) -> DrafterCost:
    """A small model of its own, once per drafted token. `config` as in `read_architecture`."""
    return token_by_token(name, read_architecture(config, precision=precision))


def eagle(config: Config, target: Architecture, *, name: str = "eagle") -> DrafterCost:
    """An EAGLE-3 head: a fusion of three of the target's layers once per round, then a layer whose
    attention reads token and feature side by side (twice as wide), and a head of its own vocabulary
    (`draft_vocab_size`; the target's without it)."""
    values = config if isinstance(config, Mapping) else load_config(config)
    drafter = read_architecture(values)
    fields = ConfigFields(values)
    hidden = drafter.hidden
    _same_hidden(fields.integer("target_hidden_size", default=hidden), target, "target_hidden_size")
    heads = fields.integer("num_attention_heads")
    size = fields.integer("head_dim", default=hidden // heads)
    inputs = size * (heads + 2 * fields.integer("num_key_value_heads", default=heads))
    first = drafter.layers[0]
    doubled = (*first.components, Projection("projections", hidden * inputs))
    layers = (Layers(1, doubled), *_fewer(first), *drafter.layers[1:])
    vocabulary = fields.integer("draft_vocab_size", default=target.vocabulary)
    head = (Projection("head", vocabulary * hidden), Sampling(vocabulary))
    fusion = (Layers(1, (Projection("draft_fusion", 3 * target.hidden * hidden),)),)
    return token_by_token(name, _part(drafter, layers, head), once=_part(drafter, fusion, ()))


def block(config: Config, target: Architecture, *, name: str = "dflash") -> DrafterCost:
    """A DFlash drafter: `block_size` rows at once, features of `target_layer_ids` of the target
    fused into its cache, the target's own head. Convolutions and selectors, where a drafter has
    them, are left out: under 1 % of its weights.

    Raises ModelError for a config that is none or does not fit the target.
    """
    values = config if isinstance(config, Mapping) else load_config(config)
    dflash = values.get("dflash_config")
    if not isinstance(dflash, Mapping) or "target_layer_ids" not in dflash:
        raise ModelError(
            "config: dflash_config with target_layer_ids is missing: no DFlash drafter"
        )
    fields = ConfigFields({**dflash, **values})
    size = fields.integer("block_size", low=2)
    drafter = read_architecture(values)
    _same_hidden(drafter.hidden, target, "hidden_size")
    depth = fields.integer("num_target_layers", default=target.depth)
    if depth != target.depth:
        raise ModelError(
            f"config: num_target_layers is {depth}; expected the {target.depth} of {target.name}"
        )
    features = len(dflash["target_layer_ids"])
    fusion = (Layers(1, (Projection("draft_fusion", features * target.hidden**2),)),)
    return whole_block(
        name,
        network=_part(drafter, drafter.layers, ()),
        head=_part(target, (), target.head),
        once=_part(drafter, fusion, ()),
        block_size=size,
    )


def _fewer(group: Layers) -> tuple[Layers, ...]:
    """The group without one of its layers."""
    return (Layers(group.count - 1, group.components),) if group.count > 1 else ()


def _part(
    model: Architecture, layers: tuple[Layers, ...], head: tuple[Component, ...]
) -> Architecture:
    """Return a model of these layers and head alone, without an embedding table of its own."""
    return replace(model, layers=layers, head=head, tied=True, draft_layer=(), max_context=0)


def _same_hidden(hidden: int, target: Architecture, field: str) -> None:
    if hidden != target.hidden:
        raise ModelError(
            f"config: {field} is {hidden}; expected the {target.hidden} of {target.name}"
        )
