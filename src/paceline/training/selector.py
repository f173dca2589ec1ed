"""The training of DFlash 2's candidate selector: cross entropy over each slot's most likely
tokens.

The token before is the true one while training (teacher forcing), and the chosen one when drafts
are judged, as in serving (`drafters.block_draws`). Slots whose token is none of the candidates
teach the selector nothing: whatever it chooses is wrong.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from paceline.models.dflash.config import DFlashConfig
from paceline.models.dflash.module import CandidateSelector, scaled_logits
from paceline.training.head import Head
from paceline.training.packs import Pack


class Candidates:
    """The most likely tokens of every slot of a pack, with the scores of the selector.

    hidden [blocks, slots, hidden]; rows int64 [blocks, slots, k] of the head, best first.
    """

    def __init__(
        self,
        config: DFlashConfig,
        selector: CandidateSelector,
        hidden: torch.Tensor,
        rows: torch.Tensor,
        head: Head,
    ) -> None:
        self.ids = head.ids[rows]
        # Slot by slot, so that only one slot's rows of the head are at hand at a time.
        unary = [
            torch.einsum("bh,bkh->bk", hidden[:, slot], head.weight[rows[:, slot]].to(hidden.dtype))
            for slot in range(rows.shape[1])
        ]
        self.unary = scaled_logits(config, torch.stack(unary, dim=1))
        self._seen = selector.hidden_projection(hidden.to(selector.predecessor_codebook.dtype))
        self._selector = selector

    def scores(self, slot: int, before: torch.Tensor) -> torch.Tensor:
        """Return the scores float [blocks, k] of a slot's candidates behind the tokens `before`
        [blocks]."""
        reach = self._selector.predecessor_codebook[before] * self._seen[:, slot]
        links = self._selector.successor_codebook[self.ids[:, slot]]
        return self.unary[:, slot] + torch.einsum("br,bkr->bk", reach, links)

    def loss(self, pack: Pack, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of the cross entropy of the slots, `weights` float [blocks,
        slots]."""
        hit = self.ids == pack.labels[..., None]
        right, share = hit.int().argmax(-1), weights * hit.any(-1)
        total = self.unary.new_zeros(())
        for slot in range(self.ids.shape[1]):
            scores = self.scores(slot, pack.before[:, slot])
            losses = functional.cross_entropy(scores, right[:, slot], reduction="none")
            total = total + (losses * share[:, slot]).sum()
        return total

    @torch.no_grad()
    def right(self, pack: Pack) -> torch.Tensor:
        """Return the slots at which the path that serving would take has the labels: bool [blocks,
        slots]."""
        before, taken = pack.ids[:, 0], []
        for slot in range(self.ids.shape[1]):
            best = self.scores(slot, before).argmax(-1, keepdim=True)
            before = self.ids[:, slot].gather(-1, best)[:, 0]
            taken.append(before)
        return (torch.stack(taken, dim=1) == pack.labels) & pack.counts
