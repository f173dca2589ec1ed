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
        # Each row of scores begins at a multiple of 16 bytes, so that kernels may read it as such.
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
        self._slot = slots.repeat(most)[:, None]
        # Behind a text's last token they go on, past all of its anchors.
        firsts = torch.tensor(pack.firsts, device=device)
        self._positions = (firsts[:, None] + places)[:, None]  # [texts, 1, longest]
        self._hidden: dict[Attention, Tensor] = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, kind: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if kind not in self._hidden:
            self._hidden[kind] = ~self._visible(kind)[:, None, None]
        (texts, rows), tokens = self._slots.shape, self._context.shape[1]
        _, heads, dim = q.shape
        k, v = k.to(q.dtype), v.to(q.dtype)
        q = (q * dim**-0.5).index_select(0, self._slots.flatten())
        q = q.view(texts, rows, k.shape[1], -1, dim).permute(0, 2, 3, 1, 4)
        to_context = _times_context(q, self._context_of(k).transpose(1, 2))
        to_block = self._times_block(q, self._blocks_of(k).transpose(1, 2))
        scores = torch.cat((to_context, to_block), dim=-1)
        weights = scores.masked_fill_(self._hidden[kind], -torch.inf).softmax(-1)
        mixed = _times_context(weights[..., :tokens], self._context_of(v))
        mixed = mixed + self._times_block(weights[..., tokens:], self._blocks_of(v))
        by_slot = mixed.permute(0, 3, 1, 2, 4).reshape(texts * rows, heads, dim)
        return by_slot.index_select(0, self._real)

    def _context_of(self, x: Tensor) -> Tensor:
        """Return the rows of each text's context, [texts * kv heads, tokens, dim], of x [context +
        queries, kv heads, dim]."""
        chosen = x.index_select(0, self._context.flatten())
        chosen = chosen.view(*self._context.shape, *x.shape[1:])
        return chosen.transpose(1, 2).flatten(0, 1)

    def _blocks_of(self, x: Tensor) -> Tensor:
        """Return the slots of each block, [texts * kv heads * blocks, size, dim], of the same."""
        chosen = x[self._tokens :].index_select(0, self._slots.flatten())
        chosen = chosen.view(len(self._slots), -1, self._size, *x.shape[1:])
        return chosen.permute(0, 3, 1, 2, 4).flatten(0, 2)

    def _times_block(self, x: Tensor, blocks: Tensor) -> Tensor:
        """Multiply the rows of each block, x [texts, kv heads, group, rows, n], by the block's own
        [n, m] of `blocks` [texts * kv heads * blocks, n, m]."""
        texts, kv, group, rows, n = x.shape
        x = x.reshape(texts, kv, group, -1, self._size, n).transpose(2, 3)
        product = torch.bmm(x.reshape(len(blocks), -1, n), blocks)
        product = product.view(texts, kv, -1, group, self._size, blocks.shape[-1]).transpose(2, 3)
        return product.reshape(texts, kv, group, rows, -1)

    def _visible(self, kind: Attention) -> Tensor:
        """Return bool [texts, rows, context + size]: what each slot sees."""
        slots = torch.arange(self._size, device=self._slot.device)
        far = self._positions < self._anchor
        near = torch.ones(len(self._slot), self._size, dtype=torch.bool, device=slots.device)
        if kind.causal:
            near &= slots <= self._slot
        if kind.window is not None:
            far &= self._anchor + self._slot - self._positions < kind.window
            near &= (self._slot - slots).abs() < kind.window
        return torch.cat((far, near.expand(len(far), -1, -1)), dim=-1)


def _times_context(x: Tensor, context: Tensor) -> Tensor:
    """Multiply x [texts, kv heads, group, rows, n] by `context` [texts * kv heads, n, m]."""
    product = torch.bmm(x.reshape(len(context), -1, x.shape[-1]), context)
    return product.view(*x.shape[:-1], -1)
