"""The serving form's interface: context goes in as features, blocks come out as drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.models.batch import ForwardBatch, PagedNetwork
from paceline.models.dflash.config import DFlashConfig


@dataclass(slots=True)
class BlockOutput:
    """The output of a draft forward for its `logit_rows`, the mask slots. The tensors may be views
    of buffers that the next forward overwrites."""

    argmax: Sequence[int]  # [outputs], token ids
    confidence: Sequence[float]  # [outputs], the largest probability
    # float32 [outputs, rows of the head] when asked for; a cut head's column j is `head_ids[j]`
    logits: Tensor | None = None
    hidden: Tensor | None = None  # [outputs, hidden] after the final norm, of a DFlash 2 drafter


class DFlashNetwork(PagedNetwork, Protocol):
    """A DFlash drafter over paged KV: TorchDFlash (any device, any dtype) or NativeDFlash (bfloat16
    on CPU, fused kernels), equal by test. The KV at the target's own slots holds context up to the
    anchor, and the block from there on."""

    config: DFlashConfig
    head_ids: Tensor | None  # token ids of a cut head, ascending
    dtype: torch.dtype

    def inject(self, features: Tensor, positions: Sequence[int], slots: Sequence[int]) -> None:
        """Write keys and values of context rows, for all layers: features [rows, K * hidden] of
        tokens at `positions` [rows], into the KV slots `slots` [rows]."""

    def draft(self, batch: ForwardBatch, *, logits: bool = False) -> BlockOutput:
        """Compute blocks: in each sequence the anchor and then mask tokens, at their positions,
        attending to context from `batch.first` on. Their KV goes behind the context, to be
        overwritten by what is committed there."""
