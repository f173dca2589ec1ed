"""Packs, rows and the plain twin that forms of the drafter's attention are held against."""

from __future__ import annotations

import torch
from torch.nn.attention.flex_attention import BlockMask, create_mask
from torch.nn.functional import scaled_dot_product_attention

from paceline.models.config import Attention
from paceline.models.dflash.module import Dense
from paceline.training.flex_attention import TILE, FlexAttention
from paceline.training.packs import Pack, Pick, draw_anchors, make_pack
from paceline.training.seen import Seen
from tests.training.twins import SIZE, random_text

KINDS = [
    Attention(None, False),
    Attention(None, True),
    Attention(5, False),
    Attention(9, True),
]
MASK = 250


def small_pack(
    features: int = 8,
    prompt: int = 4,
    window: int | None = None,
    lengths: tuple[int, ...] = (40, 18, 61),
    anchors: int = 19,
) -> Pack:
    texts = [random_text(tokens, prompt, 256, n) for n, tokens in enumerate(lengths)]
    picks = [Pick(text, draw_anchors(text, anchors, 0, 0)) for text in texts]
    generator = torch.Generator().manual_seed(3)
    parts = [torch.randn(len(text), features, generator=generator) for text in texts]
    return make_pack(picks, [Seen(part) for part in parts], SIZE, MASK, window)


def rows(pack: Pack, heads: int, seed: int, keys: bool, dim: int = 16) -> torch.Tensor:
    count = pack.ids.numel() + (len(pack.tokens) if keys else 0)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, heads, dim, generator=generator, requires_grad=True)


def dense(pack: Pack, kind: Attention, q, k, v) -> torch.Tensor:
    """Text by text, by the plain twin."""
    mixed = []
    for (start, end), (first, last) in zip(pack.context, pack.blocks, strict=True):
        own = slice(first * SIZE, last * SIZE)
        shifted = slice(len(pack.tokens) + first * SIZE, len(pack.tokens) + last * SIZE)
        twin = Dense(
            pack.tokens[start:end], pack.anchors[first:last], pack.ids[first:last, :, None]
        )
        keys = [torch.cat((part[start:end], part[shifted])) for part in (k, v)]
        mixed.append(twin(kind, q[own], *keys))
    return torch.cat(mixed)


def flex_by_tiles(pack: Pack) -> FlexAttention:
    """Flex attention with a gradient on a CPU, where torch has none: all but the kernel."""
    return FlexAttention(pack, shown_by_tiles)


def shown_by_tiles(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_mask: BlockMask, enable_gqa: bool
) -> torch.Tensor:
    """A product over what a kernel looks at: all of a whole tile, what the mask shows in the other
    tiles of the lists, and nothing else."""
    mask = create_mask(block_mask.mask_mod, None, None, q.shape[2], k.shape[2], device="cpu")
    some = listed(block_mask.kv_num_blocks, block_mask.kv_indices)
    whole = listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    seen = _pairs(whole) | _pairs(some) & mask[0, 0]
    return scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=enable_gqa)


def listed(counts: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The tiles of a list of a `BlockMask`, bool [query tiles, key tiles]."""
    chosen = torch.zeros(numbers.shape[2:], dtype=torch.bool)
    for row, (count, order) in enumerate(zip(counts[0, 0], numbers[0, 0], strict=True)):
        chosen[row, order[: int(count)].long()] = True
    return chosen


def _pairs(chosen: torch.Tensor) -> torch.Tensor:
    return chosen.repeat_interleave(TILE, dim=0).repeat_interleave(TILE, dim=1)
