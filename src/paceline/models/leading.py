"""The first layers of a network as a network of its own, over the same weights and the same KV.

It spends a share of the target's forward. The KV that it writes is that which the whole network
would write in the same places, for a layer's keys and values hang on the layers before it alone.
"""

from __future__ import annotations

import ctypes
from copy import copy
from dataclasses import dataclass

import torch

from paceline.kernels import abi
from paceline.models.batch import ForwardBatch, Network
from paceline.models.config import ModelConfig
from paceline.models.native_network import NativeNetwork
from paceline.models.native_parts import Workspace
from paceline.models.network import TorchNetwork
from paceline.models.tensors import layer_tensors


@dataclass(frozen=True, slots=True)
class Share:
    """How much of a forward: so many layers, with the head or without. `fraction` is the part of
    the whole forward's weights that it reads."""

    layers: int
    head: bool
    fraction: float


def nearest_share(config: ModelConfig, fraction: float) -> Share:
    """The share whose weights come closest to `fraction` of all that a step reads; one layer at
    least."""
    layer = sum(
        torch.Size(shape).numel() for shape in layer_tensors(config).values() if len(shape) == 2
    )
    head = config.vocab_size * config.hidden_size
    whole = config.num_layers * layer + head
    shares = [
        Share(count, with_head, (count * layer + with_head * head) / whole)
        for count in range(1, config.num_layers + 1)
        for with_head in (False, True)
    ]
    return min(shares, key=lambda share: abs(share.fraction - fraction))


class LeadingLayers:
    """Runs a share of a network's forward. `network` must have its KV already."""

    def __init__(self, network: Network, share: Share) -> None:
        self.share = share
        self.network = _leading(network, share.layers)

    def forward(self, batch: ForwardBatch) -> None:
        """Computes every row; the head for `batch.logit_rows`, where the share has it."""
        if not self.share.head:
            batch.logit_rows = batch.logit_rows[:0]
        self.network.forward(batch)


def _leading(network: Network, layers: int) -> Network:
    other = copy(network)
    other.num_layers = layers
    if isinstance(other, TorchNetwork):
        other.layers = other.layers[:layers]
    elif isinstance(other, NativeNetwork):
        other._model = abi.Model.from_buffer_copy(other.structure)
        other._model.layers = layers
        other._model_ref = ctypes.byref(other._model)
        # What a forward fills in: the whole network's stays as its last forward left it.
        other._batch, other._workspace = abi.Batch(), Workspace(other.library)
        other._logits = torch.empty(0, other.vocab_size)
        other._argmax = torch.empty(0, dtype=torch.int64)
        other._finite = torch.empty(0, dtype=torch.bool)
        other._features = torch.empty(0, dtype=torch.bfloat16)
    else:
        raise TypeError(f"no leading layers of a {type(network).__name__}")
    return other
