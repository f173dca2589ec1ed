"""The attention of many blocks of many texts on CUDA: few large products over all texts at once."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.models.config import Attention
from paceline.training.packs import Pack

UNIT = 16  # the context is padded to a multiple of so many tokens


class PaddedAttention:
    """The attention over one pack, an `Attend` of `models.dflash.module`.

    Texts are padded to the longest context and to the most blocks. A block's slots attend to that
    context and to one another under one softmax, whose scores are in memory: heads * blocks * size
    * (context + size) numbers a text.
    """

    def __init__(self, pack: Pack) -> None:
        device, size = pack.anchors.device, pack.ids.shape[1]
        self._size, self._tokens = size, len(pack.tokens)
        spans = torch.tensor([pack.context, pack.blocks]).to(device)
        (first_token, first_block), counts = spans[..., 0], spans[..., 1] - spans[..., 0]
        # Rows that do not begin at a multiple of 16 bytes make products several times slower.
        longest = -(-max(end - start for start, end in pack.context) // UNIT) * UNIT
        most = max(end - start for start, end in pack.blocks)
        places = torch.arange(longest, device=device)
        self._context = (first_token[:, None] + places).clamp(max=max(0, self._tokens - 1))
        block_places = torch.arange(most, device=device)
        block = (first_block[:, None] + block_places).clamp(max=len(pack.anchors) - 1)
        slots = torch.arange(size, device=device)
        self._slots = (block[..., None] * size + slots).flatten(1)  # [texts, most * size]
        self._real = (block_places < counts[1][:, None]).repeat_interleave(size, dim=1).flatten()
        self._real = self._real.nonzero()[:, 0]
        self._anchor = pack.anchors[block].repeat_interleave(size, dim=1)[..., None]
        self._slot, self._places = slots.repeat(most)[:, None], places
        self._hidden: dict[Attention, Tensor] = {}

    def __call__(self, kind: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if kind not in self._hidden:
            self._hidden[kind] = ~self._visible(kind)[:, None, None]
        size, (texts, rows), (_, kv, dim) = self._size, self._slots.shape, k.shape
        tokens, heads = self._context.shape[1], q.shape[1]
        group, blocks, k, v = heads // kv, rows // size, k.to(q.dtype), v.to(q.dtype)

        def far(x: Tensor) -> Tensor:  # [texts * kv, tokens, dim]
            chosen = x.index_select(0, self._context.flatten()).view(texts, tokens, kv, dim)
            return chosen.transpose(1, 2).reshape(texts * kv, tokens, dim)

        def near(x: Tensor) -> Tensor:  # [texts * kv * blocks, size, dim]
            chosen = x[self._tokens :].index_select(0, self._slots.flatten())
            chosen = chosen.view(texts, blocks, size, kv, dim).permute(0, 3, 1, 2, 4)
            return chosen.reshape(-1, size, dim)

        def by_block(x: Tensor, last: int) -> Tensor:  # [texts * kv * blocks, group * size, last]
            x = x.reshape(texts, kv, group, blocks, size, last).transpose(2, 3)
            return x.reshape(-1, group * size, last)

        def by_row(x: Tensor, last: int) -> Tensor:  # [texts, kv, group, rows, last]
            x = x.view(texts, kv, blocks, group, size, last).transpose(2, 3)
            return x.reshape(texts, kv, group, rows, last)

        q = (q * dim**-0.5).index_select(0, self._slots.flatten())
        q = q.view(texts, rows, kv, group, dim).permute(0, 2, 3, 1, 4)
        flat = q.reshape(texts * kv, group * rows, dim)
        to_context = torch.bmm(flat, far(k).transpose(1, 2)).view(texts, kv, group, rows, tokens)
        to_block = by_row(torch.bmm(by_block(q, dim), near(k).transpose(1, 2)), size)
        scores = torch.cat((to_context, to_block), dim=-1)
        weights = scores.masked_fill_(self._hidden[kind], -torch.inf).softmax(-1)
        of_context = weights[..., :tokens].reshape(texts * kv, group * rows, tokens)
        mixed = torch.bmm(of_context, far(v)).view(texts, kv, group, rows, dim)
        of_block = by_block(weights[..., tokens:], size)
        mixed = mixed + by_row(torch.bmm(of_block, near(v)), dim)
        by_slot = mixed.permute(0, 3, 1, 2, 4).reshape(texts * rows, heads, dim)
        return by_slot.index_select(0, self._real)

    def _visible(self, kind: Attention) -> Tensor:
        """Return bool [texts, rows, context + size]: what each slot sees."""
        slots = torch.arange(self._size, device=self._slot.device)
        far = self._places < self._anchor
        near = torch.ones(len(self._slot), self._size, dtype=torch.bool, device=slots.device)
        if kind.causal:
            near &= slots <= self._slot
        if kind.window is not None:
            far &= self._anchor + self._slot - self._places < kind.window
            near &= (self._slot - slots).abs() < kind.window
        return torch.cat((far, near.expand(len(far), -1, -1)), dim=-1)
