"""What a target makes of a whole sequence: the training form's input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from paceline.models.batch import BLOCK_SIZE, ForwardBatch, ForwardOutput, Network

ROWS = 512  # of one forward


def sequence_features(network: Network, ids: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
    """Outputs of the target's `layers` for every token, side by side: [tokens, layers * hidden].

    Computes into the network's first blocks: nobody else may be using its KV.
    """
    parts = [output.features for _, output in sequence_outputs(network, ids, layers)]
    return torch.cat([part for part in parts if part is not None])


def sequence_outputs(
    network: Network, ids: Sequence[int], layers: Sequence[int], logits: bool = False
) -> Iterator[tuple[int, ForwardOutput]]:
    """Outputs of a sequence in chunks of ROWS tokens, each with its first position; with the logits
    of every token where `logits` says so. The features are copies, the logits are not."""
    blocks = -(-len(ids) // BLOCK_SIZE)
    table = np.arange(blocks, dtype=np.int32)[None]
    for start in range(0, len(ids), ROWS):
        rows = np.array(ids[start : start + ROWS], dtype=np.int32)
        places = np.arange(len(rows), dtype=np.int32)
        batch = ForwardBatch(
            ids=rows,
            positions=start + places,
            seq_starts=np.array([0, len(rows)], dtype=np.int32),
            block_tables=table,
            logit_rows=places if logits else places[:0],
        )
        output = network.forward(batch, tuple(layers))
        assert output.features is not None
        yield start, replace(output, features=output.features.clone())
