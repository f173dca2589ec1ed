"""The first layers of a network as a network of its own, over the same weights and the same KV.

It spends a share of the target's forward. It writes the KV that the full network would write in the
same places, since a layer's keys and values depend on the layers before it alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.models.batch import ForwardBatch, Network
from paceline.models.config import ModelConfig
from paceline.models.native_network import NativeNetwork
from paceline.models.network import TorchNetwork
from paceline.models.tensors import layer_tensors


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a forward: its first `layers`, with the head or without. `fraction` is the part of
    the whole forward's weights that it reads."""

    layers: int
    head: bool
    fraction: float


def nearest_share(config: ModelConfig, fraction: float) -> Share:
    """Return the share whose weights come closest to `fraction` of all; one layer at least."""
    layer = sum(
        torch.Size(shape).numel() for shape in layer_tensors(config).values() if len(shape) == 2
    )
    head = config.vocab_size * config.hidden_size
    total = config.num_layers * layer + head
    shares = [
        Share(count, with_head, (count * layer + with_head * head) / total)
        for count in range(1, config.num_layers + 1)
        for with_head in (False, True)
    ]
    return min(shares, key=lambda share: abs(share.fraction - fraction))


class LeadingLayers:
    """Runs the share of a network's forward that is nearest to `fraction`. `network` must have its
    KV already."""

    def __init__(self, network: Network, fraction: float) -> None:
        if not isinstance(network, TorchNetwork | NativeNetwork):
            raise TypeError(f"no leading layers of a {type(network).__name__}")
        self.share = nearest_share(network.config, fraction)
        self.network = network.leading(self.share.layers)

    def forward(self, batch: ForwardBatch) -> None:
        """Compute every row; the head for `batch.logit_rows`, where the share has it."""
        if not self.share.head:
            batch.logit_rows = batch.logit_rows[:0]
        self.network.forward(batch)
