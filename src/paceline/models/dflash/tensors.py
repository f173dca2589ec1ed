"""The tensors that a DFlash checkpoint must hold, under the authors' names."""

from __future__ import annotations

from paceline.models.batch import Part
from paceline.models.dflash.config import DFlashConfig
from paceline.models.tensors import JOINED, layer_tensors

FC, HIDDEN_NORM, NORM = "fc.weight", "hidden_norm.weight", "norm.weight"
PREDECESSORS = "candidate_selector.predecessor_codebook"
SUCCESSORS = "candidate_selector.successor_codebook"
SELECTOR_PROJECTION = "candidate_selector.hidden_projection.weight"
CONVOLUTIONS = ("attention_conv", "mlp_conv")


def linear_of(name: str) -> str:
    """Return the part of the forward that a weight belongs to; "" for one that no recipe names."""
    parts = JOINED | {Part.CONTEXT: (FC,)}
    owners = (part for part, modules in parts.items() for module in modules if module in name)
    return next(owners, "")


def layer_prefix(layer: int) -> str:
    return f"layers.{layer}."


def dflash_tensors(config: DFlashConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor; linear weights are [out, in]."""
    hidden, second = config.layers.hidden_size, config.second
    tensors: dict[str, tuple[int, ...]] = {FC: (hidden, config.feature_size)}
    tensors |= dict.fromkeys((HIDDEN_NORM, NORM), (hidden,))
    for layer in range(config.layers.num_layers):
        shapes = layer_tensors(config.layers)
        if second is not None:
            dynamic = 2 * second.kernel_size * hidden // second.group_size
            for name in CONVOLUTIONS:
                shapes[f"{name}.base_kernel"] = (2, second.kernel_size, hidden)
                shapes[f"{name}.kernel_projection.weight"] = (dynamic, hidden)
        tensors |= {layer_prefix(layer) + name: shape for name, shape in shapes.items()}
    if second is not None:
        tensors[PREDECESSORS] = (config.layers.vocab_size, second.selector_rank)
        tensors[SUCCESSORS] = (config.layers.vocab_size, second.selector_rank)
        tensors[SELECTOR_PROJECTION] = (second.selector_rank, hidden)
    return tensors
