"""The attention of many blocks of many texts that are trained at once.

A block's slots see their own text strictly before the anchor, and one another. Over everything side
by side that mask is nearly empty, so no form builds it: on the CPU each text's context and its
blocks are two small products under one softmax, on CUDA all texts together are two large products
(padded_attention), or one kernel that leaves out what nobody sees (flex_attention).
`models.dflash.module.Dense` is the plain twin of all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.models.config import Attention
from paceline.models.dflash.module import Attend
from paceline.training.flex_attention import FlexAttention
from paceline.training.packs import Pack, first_seen
from paceline.training.padded_attention import PaddedAttention

GROUP = 16  # anchors of one text whose context is cut at the last of them


class PackedAttention:
    """The attention over one pack on a CPU, an `Attend` of `models.dflash.module`."""

    def __init__(self, pack: Pack) -> None:
        self._size = pack.ids.shape[1]
        self._tokens = len(pack.tokens)
        self._groups: list[_Group] = []
        texts = zip(pack.context, pack.firsts, pack.blocks, strict=True)
        for (row, _), first, (begin, last) in texts:
            for block in range(begin, last, GROUP):
                blocks = slice(block, min(block + GROUP, last))
                self._groups.append(_Group(row, first, blocks, pack.anchors[blocks]))
        self._bias: dict[Attention, list[torch.Tensor]] = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(
        self, kind: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        size, tokens = self._size, self._tokens
        if kind not in self._bias:
            self._bias[kind] = [self._mask(kind, group, q.dtype) for group in self._groups]
        mixed = []
        for group, bias in zip(self._groups, self._bias[kind], strict=True):
            context = group.rows(kind)
            rows = slice(group.blocks.start * size, group.blocks.stop * size)
            slots = slice(tokens + rows.start, tokens + rows.stop)
            mixed.append(_attend(q[rows], k[context], v[context], k[slots], v[slots], bias, size))
        return torch.cat(mixed)

    def _mask(self, kind: Attention, group: _Group, dtype: torch.dtype) -> torch.Tensor:
        """Return 0 where a slot sees, -inf where it does not: [blocks * size, context + size]."""
        anchors, seen = group.anchors, group.seen(kind)
        slots, tokens = torch.arange(self._size), torch.arange(seen.start, seen.stop)
        own_slot = slots.repeat(len(anchors))[:, None]
        anchor = anchors.repeat_interleave(self._size)[:, None]
        context = tokens < anchor
        block = torch.ones(len(own_slot), self._size, dtype=torch.bool)
        if kind.causal:
            block &= slots <= own_slot
        if kind.window is not None:
            context &= anchor + own_slot - tokens < kind.window
            block &= (own_slot - slots).abs() < kind.window
        visible = torch.cat((context, block), dim=1)
        return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighbouring `blocks` of one text with their anchors. Its context begins in `row` of the
    pack, with token `first` of the text."""

    row: int
    first: int
    blocks: slice
    anchors: torch.Tensor

    def seen(self, kind: Attention) -> range:
        """Return the tokens of context that a block may see."""
        first = max(self.first, first_seen(int(self.anchors[0]), kind.window))
        return range(first, int(self.anchors[-1]))

    def rows(self, kind: Attention) -> slice:
        """Return the rows of these tokens in the pack."""
        seen = self.seen(kind)
        return slice(self.row + seen.start - self.first, self.row + seen.stop - self.first)


def _attend(
    q: torch.Tensor,
    context_k: torch.Tensor,
    context_v: torch.Tensor,
    own_k: torch.Tensor,
    own_v: torch.Tensor,
    bias: torch.Tensor,
    size: int,
) -> torch.Tensor:
    """Mix the values of one text's blocks: q [rows, heads, dim] over context [tokens, kv heads,
    dim] and the block's slots [rows, kv heads, dim], under one softmax."""
    rows, heads, dim = q.shape
    kv, tokens, blocks = context_k.shape[1], len(context_k), len(q) // size
    group = heads // kv
    q = (q * dim**-0.5).view(rows, kv, group, dim).permute(1, 2, 0, 3)  # kv, group, rows, dim
    by_block = q.reshape(kv, group, blocks, size, dim).transpose(1, 2)
    by_block = by_block.reshape(kv, blocks, group * size, dim)
    own_k = own_k.view(blocks, size, kv, dim).permute(2, 0, 3, 1)
    own_v = own_v.view(blocks, size, kv, dim).permute(2, 0, 1, 3)
    far = (q.reshape(kv, group * rows, dim) @ context_k.permute(1, 2, 0)).view(
        kv, group, rows, tokens
    )
    near = (by_block @ own_k).view(kv, blocks, group, size, size).transpose(1, 2)
    scores = torch.cat((far, near.reshape(kv, group, rows, size)), dim=-1) + bias
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    far, near = weights[..., :tokens], weights[..., tokens:]
    mixed = (far.reshape(kv, group * rows, tokens) @ context_v.transpose(0, 1)).view(
        kv, group, rows, dim
    )
    near = near.reshape(kv, group, blocks, size, size).transpose(1, 2)
    near = near.reshape(kv, blocks, group * size, size) @ own_v
    near = near.view(kv, blocks, group, size, dim).transpose(1, 2).reshape(kv, group, rows, dim)
    return (mixed + near).permute(2, 0, 1, 3).reshape(rows, heads, dim)


def attention_over(pack: Pack, form: str = "auto") -> Attend:
    """Return the form of a name: padded, flex, or with auto the one that is usual on the
    device of the pack."""
    if form == "flex":
        return FlexAttention(pack)
    return PaddedAttention(pack) if pads(form, pack.features.device.type) else PackedAttention(pack)


def pads(form: str, device: str) -> bool:
    """Return whether the form of a name pads texts to the longest, on "cpu" or "cuda"."""
    return form == "padded" or (form == "auto" and device == "cuda")
