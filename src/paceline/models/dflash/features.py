"""What a target makes of a whole sequence: the training form's input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.models.batch import BLOCK_SIZE, ForwardBatch, Network

ROWS = 512  # of one forward


def sequence_features(network: Network, ids: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
    """Outputs of the target's `layers` for every token, side by side: [tokens, layers * hidden].

    Computes into the network's first blocks: nobody else may be using its KV.
    """
    blocks = -(-len(ids) // BLOCK_SIZE)
    table = np.arange(blocks, dtype=np.int32)[None]
    parts = []
    for start in range(0, len(ids), ROWS):
        rows = np.array(ids[start : start + ROWS], dtype=np.int32)
        batch = ForwardBatch(
            ids=rows,
            positions=np.arange(start, start + len(rows), dtype=np.int32),
            seq_starts=np.array([0, len(rows)], dtype=np.int32),
            block_tables=table,
            logit_rows=rows[:0],
        )
        features = network.forward(batch, tuple(layers)).features
        assert features is not None
        parts.append(features.clone())
    return torch.cat(parts)
