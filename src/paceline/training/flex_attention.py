"""The attention of many blocks of many texts on CUDA by one kernel that keeps no scores in memory.

The kernel is `torch.nn.attention.flex_attention`. It has not run on a GPU yet: on a CPU its values
and the gradient through its mask are tested against the plain twin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from paceline.models.config import Attention
from paceline.training.packs import Pack

TILE = 128  # queries, and keys, that the kernel computes or leaves out together
Product = Callable[..., Tensor]


class FlexAttention:
    """The attention over one pack, an `Attend` of `models.dflash.module`.

    A query sees two runs of neighbouring keys: tokens of its text's context, and slots of its own
    block. Context and slots are padded to whole tiles, so that the slots' tiles are the diagonal of
    the mask. A padded query sees what the last query sees, and is cut off behind the product.

    `product` is `flex_attention` or a twin of it, by default compiled.
    """

    def __init__(self, pack: Pack, product: Product | None = None) -> None:
        self._product = compiled() if product is None else product
        device, size = pack.anchors.device, pack.ids.shape[1]
        self._tokens, self._queries, self._size = len(pack.tokens), pack.ids.numel(), size
        # A length of one tile would be compiled for itself.
        self._padded = max(2 * TILE, _whole_tiles(self._queries))
        self._first_slot = _whole_tiles(self._tokens)
        query = torch.arange(self._padded, device=device).clamp_(max=self._queries - 1)
        block, self._slot = query // size, query % size
        self._own = self._first_slot + query - self._slot
        self._anchor = pack.anchors[block]
        # Of each text: the token that its context begins with, and where its token 0 would be.
        texts = [
            (first, row - first) for (row, _), first in zip(pack.context, pack.firsts, strict=True)
        ]
        counts = torch.tensor([last - first for first, last in pack.blocks])
        of_block = torch.tensor(texts).repeat_interleave(counts, dim=0).to(device)
        self._first, self._row = of_block[block].unbind(1)
        self._masks: dict[Attention, BlockMask] = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, kind: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if kind not in self._masks:
            self._masks[kind] = self._mask(kind)
        dtype, device = q.dtype, q.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        q = _longer(q.to(dtype), self._padded)
        k, v = self._keys(k.to(dtype)), self._keys(v.to(dtype))
        with torch.autocast(device, enabled=False):
            mixed = self._product(
                *(x.transpose(0, 1)[None] for x in (q, k, v)),  # heads first
                block_mask=self._masks[kind],
                enable_gqa=q.shape[1] != k.shape[1],
            )
        return mixed[0].transpose(0, 1)[: self._queries]

    def _keys(self, x: Tensor) -> Tensor:
        """Return x [context + queries, kv heads, dim] with both parts padded to whole tiles."""
        context, slots = x[: self._tokens], x[self._tokens :]
        return torch.cat((_longer(context, self._first_slot), _longer(slots, self._padded)))

    def _runs(self, kind: Attention) -> Tensor:
        """Return where the two runs of keys that a query sees begin and end, int32 [4, queries]:
        begin and end in the context, begin and end in the block."""
        slot, first, end = self._slot, self._first, self._anchor
        low, high = torch.zeros_like(slot), torch.full_like(slot, self._size)
        if kind.causal:
            high = slot + 1
        if kind.window is not None:
            first = torch.maximum(first, end + slot - kind.window + 1).minimum(end)
            low = (slot - kind.window + 1).clamp(min=0)
            high = torch.minimum(high, slot + kind.window)
        row, own = self._row, self._own
        return torch.stack((first + row, end + row, low + own, high + own)).int()

    def _mask(self, kind: Attention) -> BlockMask:
        """Return who sees whom. torch's `create_block_mask` would look at every pair of a query
        and a key; the ends of the runs say as much."""
        runs = self._runs(kind)
        some, whole = tiles(runs, self._first_slot + self._padded)
        return BlockMask.from_kv_blocks(
            *_in_order(some & ~whole), *_in_order(whole), BLOCK_SIZE=TILE, mask_mod=_visible(runs)
        )


def tiles(runs: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """Return bool [query tiles, key tiles] twice: tiles in which some query may see some key, and
    those in which every query sees every key."""
    begin, end = runs.view(2, 2, -1, TILE, 1).unbind(1)  # [context or block, query tiles, TILE, 1]
    edges = torch.arange(0, keys, TILE, device=runs.device)
    some = (edges < end.amax(2)) & (edges + TILE > begin.amin(2))
    whole = (edges >= begin.amax(2)) & (edges + TILE <= end.amin(2))
    return some.any(0), whole.any(0)


def _in_order(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many key tiles are chosen for each query tile, and their numbers before all
    others, as a `BlockMask` has them."""
    numbers = chosen.int().argsort(dim=1, descending=True, stable=True)
    return chosen.sum(1, dtype=torch.int32)[None, None], numbers.int()[None, None]


def _visible(runs: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the mask of single pairs. It holds tensors alone, so that it is compiled once for all
    packs and kinds."""
    first, last, low, high = (run.clone() for run in runs.unbind())

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        in_context = (key >= first[query]) & (key < last[query])
        return in_context | ((key >= low[query]) & (key < high[query]))

    return visible


def _whole_tiles(length: int) -> int:
    return -(-length // TILE) * TILE


def _longer(x: Tensor, length: int) -> Tensor:
    """Return x [rows, heads, dim] with rows of zeros behind, up to `length`."""
    longer: Tensor = pad(x, (0, 0, 0, 0, 0, length - len(x)))
    return longer


@functools.cache
def compiled(backend: Any = "inductor") -> Product:
    """Return flex attention compiled once for packs of all sizes. What would not be compiled, and
    so keep its scores in memory, raises."""
    product: Product = torch.compile(flex_attention, backend=backend, dynamic=True, fullgraph=True)
    return product
