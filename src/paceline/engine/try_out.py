"""Tries a target out: does a forward give logits that a token can be chosen from?"""

from __future__ import annotations

import numpy as np
import torch

from paceline.core import ModelError
from paceline.models.batch import BLOCK_SIZE, ForwardBatch, Network

ROWS = 8


@torch.inference_mode()
def try_out(network: Network, name: str, *, longest: int, block: int = 0) -> None:
    """Compute a few rows of tokens from all over the vocabulary, in a KV block that nobody owns.
    `longest` is the longest text in tokens that the network may see.

    Raises ModelError naming the model where a row holds NaN or infinity, or the same number for
    every token: weights can have the right shapes and be damaged all the same.
    """
    rows = min(ROWS, BLOCK_SIZE, longest)
    output = network.forward(
        ForwardBatch(
            ids=np.linspace(0, network.vocab_size - 1, rows).astype(np.int32),
            positions=np.arange(rows, dtype=np.int32),
            seq_starts=np.array([0, rows], dtype=np.int32),
            block_tables=np.array([[block]], dtype=np.int32),
            logit_rows=np.arange(rows, dtype=np.int32),
        )
    )
    remedy = "its weights are damaged; fetch or convert the model again"
    if not bool(output.finite.all()):
        raise ModelError(f"{name}: its logits hold NaN or infinity: {remedy}")
    if bool((output.logits.amax(-1) == output.logits.amin(-1)).any()):
        raise ModelError(f"{name}: its logits are the same for every token: {remedy}")
