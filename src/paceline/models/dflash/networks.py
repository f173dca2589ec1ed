"""Which of the two serving forms runs a drafter here, and what it takes."""

from __future__ import annotations

import torch

from paceline.models.batch import Network
from paceline.models.dflash.batch import DFlashNetwork
from paceline.models.dflash.checkpoint import DFlashCheckpoint
from paceline.models.dflash.config import DFlashConfig
from paceline.models.dflash.tensors import dflash_tensors
from paceline.models.dflash.torch_network import TorchDFlash
from paceline.models.networks import DTYPES


def build_dflash(
    checkpoint: DFlashCheckpoint,
    target: Network,
    *,
    dtype: str,
    backend: str = "auto",
    head_ids: torch.Tensor | None = None,
    max_positions: int,
) -> DFlashNetwork:
    """The drafter's network around `target`'s embedding and head, on the target's device."""
    return TorchDFlash(
        checkpoint.config,
        checkpoint.weights,
        target,
        max_positions=max_positions,
        dtype=DTYPES[dtype],
        head_ids=head_ids,
        mask_embedding=checkpoint.mask_embedding,
    )


def planned_bytes(config: DFlashConfig, dtype: torch.dtype, head_ids: torch.Tensor | None) -> int:
    """What the drafter's weights will take in memory, a cut head's rows included, before there is a
    target to build it around."""
    matrices = [shape for shape in dflash_tensors(config).values() if len(shape) > 1]
    elements = sum(torch.Size(shape).numel() for shape in matrices)
    if head_ids is not None:
        elements += len(head_ids) * config.layers.hidden_size
    return elements * dtype.itemsize
