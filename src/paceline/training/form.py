"""The drafter in training: the network with the target's frozen embedding and head around it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from paceline.models.dflash.module import CandidateSelector, DFlashModule, scaled_logits
from paceline.training.attention import attention_over
from paceline.training.cost import StepCosts, drafter_operations, head_operations
from paceline.training.losses import Head, Objective, SlotLosses, head_loss, likeliest
from paceline.training.packs import Pack


class Candidates:
    """The most likely tokens of every slot of a pack, with the scores of DFlash 2's selector.

    The token before is the true one while training (teacher forcing), and the chosen one when
    drafts are judged, as in serving (`drafters.block_draws`). Slots whose token is none of the
    candidates teach the selector nothing: whatever it chooses is wrong.

    hidden [blocks, slots, hidden]; rows int64 [blocks, slots, k] of the head, best first.
    """

    def __init__(
        self, selector: CandidateSelector, hidden: torch.Tensor, rows: torch.Tensor, head: Head
    ) -> None:
        self.ids = head.ids[rows]
        # Slot by slot, so that only one slot's rows of the head are at hand at a time.
        unary = [
            torch.einsum("bh,bkh->bk", hidden[:, slot], head.weight[rows[:, slot]].to(hidden.dtype))
            for slot in range(rows.shape[1])
        ]
        self.unary = scaled_logits(head.config, torch.stack(unary, dim=1))
        self._seen = selector.hidden_projection(hidden.to(selector.predecessor_codebook.dtype))
        self._selector = selector
        # codebook[ids] would add its gradients with atomic operations, in an order that changes
        # from run to run; embedding() adds them in one order. It makes a gradient as large as the
        # table, so that the slots share one table of the candidates alone.
        tokens, self._places = torch.unique(self.ids, return_inverse=True)
        self._successors = functional.embedding(tokens, selector.successor_codebook)

    def scores(self, slot: int, before: torch.Tensor) -> torch.Tensor:
        """Return the scores float [blocks, k] of a slot's candidates behind tokens whose rows of
        the predecessors' codebook are `before` [blocks, rank]."""
        links = functional.embedding(self._places[:, slot], self._successors)
        return self.unary[:, slot] + torch.einsum("br,bkr->bk", before * self._seen[:, slot], links)

    def loss(self, pack: Pack, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of the cross entropy of the slots, `weights` float [blocks,
        slots]."""
        hit = self.ids == pack.labels[..., None]
        right, share = hit.int().argmax(-1), weights * hit.any(-1)
        before = self._predecessors(pack.before)
        total = self.unary.new_zeros(())
        for slot in range(self.ids.shape[1]):
            scores = self.scores(slot, before[:, slot])
            losses = functional.cross_entropy(scores, right[:, slot], reduction="none")
            total = total + (losses * share[:, slot]).sum()
        return total

    def _predecessors(self, tokens: torch.Tensor) -> torch.Tensor:
        return functional.embedding(tokens, self._selector.predecessor_codebook)

    @torch.no_grad()
    def right(self, pack: Pack) -> torch.Tensor:
        """Return the slots at which the path that serving would take has the labels: bool [blocks,
        slots]."""
        before, taken = pack.ids[:, 0], []
        for slot in range(self.ids.shape[1]):
            scores = self.scores(slot, self._predecessors(before))
            best = scores.argmax(-1, keepdim=True)
            before = self.ids[:, slot].gather(-1, best)[:, 0]
            taken.append(before)
        return (torch.stack(taken, dim=1) == pack.labels) & pack.counts


class TrainingForm(nn.Module):
    """The loss of a pack. Only `drafter` has parameters; embedding and head are the target's.

    `mask_embedding` float [hidden] replaces the row of the mask token where a checkpoint has one.
    `start` is the drafter that the run began with, where the objective compares with it.
    `attention` names the form of the drafter's attention (`attention_over`).
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
        start: DFlashModule | None = None,
        attention: str = "auto",
    ) -> None:
        super().__init__()
        self.drafter, self.config = drafter, drafter.config
        self._embedding, self.head, self._objective = embedding, head, objective
        self.mask_embedding, self._autocast = mask_embedding, autocast
        self._attention = attention
        # In a tuple, since a module would be a part of the form.
        self._start = None if start is None else (start.requires_grad_(False),)

    def hidden(self, pack: Pack) -> torch.Tensor:
        """Return the hidden states of every slot but the anchor's: [blocks, block - 1, hidden]."""
        return self._hidden(pack, self.drafter)

    def _hidden(self, pack: Pack, drafter: DFlashModule) -> torch.Tensor:
        embedded = self._embedding[pack.ids]
        if self.mask_embedding is not None:
            embedded[:, 1:] = self.mask_embedding.to(embedded.dtype)
        embedded = embedded * self.config.embedding_scale
        embedded = embedded if self._autocast else embedded.float()
        device = pack.features.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._autocast):
            features = pack.features if self._autocast else pack.features.float()
            attend = attention_over(pack, self._attention)
            hidden = drafter.run(features, pack.tokens, embedded, pack.anchors, attend)
        return hidden[:, 1:].contiguous()  # bf16 products of a view copy the head, slot by slot

    def forward(
        self, pack: Pack, costs: StepCosts | None = None, speedup: float = 1.0
    ) -> SlotLosses:
        hidden = self.hidden(pack)
        start = None
        if self._start is not None:
            with torch.no_grad():
                start = self._hidden(pack, self._start[0])
        labels, objective = self.head.row_of[pack.labels], self._objective
        with nullcontext() if costs is None else costs.phase("head"):
            out = head_loss(
                hidden, self.head, labels, pack.counts, pack.soft, objective, start, speedup
            )
        if out.top is None:
            return out
        candidates = self._candidates(hidden, out.top)
        taught = self._objective.selector * candidates.loss(pack, out.weights)
        return replace(out, loss=out.loss + taught, right=candidates.right(pack))

    @torch.no_grad()
    def right(self, pack: Pack) -> torch.Tensor:
        """Return the drafted tokens that are the text's, drafted as in serving: bool [blocks,
        slots]."""
        hidden = self.hidden(pack)
        rows = likeliest(hidden, self.head, self.head.candidates or 1)
        if self.head.candidates:
            return self._candidates(hidden, rows).right(pack)
        return (rows[..., 0] == self.head.row_of[pack.labels]) & pack.counts

    def operations(self, pack: Pack, *, learns: bool) -> tuple[float, float]:
        """Return the operations of drafter and head over a pack: those of forward() and of its
        backward where something learns, else those of right()."""
        passes = (1 if self._start is None else 2, 1) if learns else (1, 0)
        rows, slots = len(self.head.weight), pack.labels.numel()
        return (
            drafter_operations(self.config, len(pack.tokens), pack.ids.numel(), *passes),
            head_operations(self.config, rows, slots, *passes),
        )

    def _candidates(self, hidden: torch.Tensor, rows: torch.Tensor) -> Candidates:
        return Candidates(self.drafter.candidate_selector, hidden, rows, self.head)
