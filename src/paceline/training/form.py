"""The drafter in training: the network with the target's frozen embedding and head around it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from paceline.models.dflash.module import DFlashModule
from paceline.training.attention import attention_over
from paceline.training.cost import PhaseCosts
from paceline.training.head import Head, Objective, head_loss, likeliest
from paceline.training.packs import Pack
from paceline.training.selector import Candidates


@dataclass(frozen=True, slots=True)
class PackLoss:
    """The loss of a pack, summed, and `right` bool [blocks, slots], the drafts that are right."""

    loss: torch.Tensor
    right: torch.Tensor


class TrainingForm(nn.Module):
    """The loss of a pack. Only `drafter` has parameters; embedding and head are the target's.

    `mask_embedding` float [hidden] replaces the row of the mask token where a checkpoint has one.
    """

    def __init__(
        self,
        drafter: DFlashModule,
        embedding: torch.Tensor,
        head: Head,
        objective: Objective,
        *,
        mask_embedding: torch.Tensor | None = None,
        autocast: bool = True,
    ) -> None:
        super().__init__()
        self.drafter, self.config = drafter, drafter.config
        self._embedding, self.head, self._objective = embedding, head, objective
        self.mask_embedding, self._autocast = mask_embedding, autocast

    def hidden(self, pack: Pack) -> torch.Tensor:
        """Return the hidden states of every slot but the anchor's: [blocks, block - 1, hidden]."""
        embedded = self._embedding[pack.ids]
        if self.mask_embedding is not None:
            embedded[:, 1:] = self.mask_embedding.to(embedded.dtype)
        embedded = embedded * self.config.embedding_scale
        device = pack.features.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._autocast):
            features = pack.features if self._autocast else pack.features.float()
            attend = attention_over(pack)
            hidden = self.drafter.run(features, pack.tokens, embedded, pack.anchors, attend)
        return hidden[:, 1:].contiguous()  # bf16 products of a view copy the head, slot by slot

    def forward(self, pack: Pack, costs: PhaseCosts | None = None) -> PackLoss:
        hidden = self.hidden(pack)
        labels = self.head.row_of[pack.labels]
        second = self.config.second
        top = 0 if second is None else second.selector_top_k
        with nullcontext() if costs is None else costs.phase("head"):
            out = head_loss(
                self.config, hidden, self.head, labels, pack.counts, pack.soft, self._objective, top
            )
        if out.top is None:
            return PackLoss(out.loss, out.right)
        selector = self.drafter.candidate_selector
        candidates = Candidates(self.config, selector, hidden, out.top, self.head)
        taught = self._objective.selector * candidates.loss(pack, out.weights)
        return PackLoss(out.loss + taught, candidates.right(pack))

    @torch.no_grad()
    def right(self, pack: Pack) -> torch.Tensor:
        """Return the drafted tokens that are the text's, drafted as in serving: bool [blocks,
        slots]."""
        hidden = self.hidden(pack)
        second = self.config.second
        rows = likeliest(self.config, hidden, self.head, second.selector_top_k if second else 1)
        if second is not None:
            selector = self.drafter.candidate_selector
            return Candidates(self.config, selector, hidden, rows, self.head).right(pack)
        return (rows[..., 0] == self.head.row_of[pack.labels]) & pack.counts
