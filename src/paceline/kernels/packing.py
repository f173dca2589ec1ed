"""Weights as the kernels read them: one copy, in panels of 32 outputs.

A matrix [n, k] becomes [ceil(n / 32)][words][32] words of 32 bits, each two bf16 or four int8 along
k, side by side for 32 outputs, with zeros in the padding to 64 bytes of k. A row of 32 words is two
vectors, and 16 rows are two AMX tiles. int8 is stored plus 128 (see native/quantize.h).
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

LANES = 16  # of a vector
PANEL = 32  # outputs side by side
PAGE = 4096
HUGE_PAGE = 2 << 20
K_BYTES = 64  # a matrix's rows are padded to a multiple of it


def padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def packed_bytes(n: int, k: int, itemsize: int = 2) -> int:
    return padded(n, PANEL) * padded(k * itemsize, K_BYTES)


def pack(weight: Tensor, out: Tensor) -> None:
    """Write `weight` [n, k], int8 or else as bf16, into `out`, int32 [panels, words, PANEL]."""
    panels, words, _ = out.shape
    n, k = weight.shape
    if weight.dtype == torch.int8:
        rows = (weight.view(torch.uint8) ^ 0x80).contiguous()
    else:
        rows = weight.to(torch.bfloat16).contiguous()
    columns = words * 4 // rows.itemsize
    if (n, k) != (panels * PANEL, columns):
        padded_rows = rows.new_zeros(panels * PANEL, columns)
        padded_rows[:n, :k] = rows
        rows = padded_rows
    out.copy_(rows.view(torch.int32).view(panels, PANEL, words).transpose(1, 2))


def unpack_rows(packed: Tensor, ids: Tensor, k: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return rows `ids` of the matrix [n, k] that `packed` was made from, [len(ids), k]."""
    rows = packed[ids // PANEL, :, ids % PANEL].contiguous()
    if dtype == torch.int8:
        return (rows.view(torch.uint8)[:, :k] ^ 0x80).view(torch.int8)
    return rows.view(dtype)[:, :k].contiguous()


def zeroed(size: int) -> Tensor:
    """Return `size` zeroed bytes, page-aligned, on huge pages where there are any."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


class Arena:
    """One run of memory, handed out piece by piece: `size` zeroed bytes, on huge pages where there
    are any, or `data` (uint8, page-aligned), which an arena of the same size has filled before."""

    def __init__(self, size: int = 0, data: Tensor | None = None) -> None:
        self.data = zeroed(padded(size, PAGE)) if data is None else data
        self.used = 0

    def take(self, size: int) -> Tensor:
        """Return the next `size` bytes, uint8, page-aligned."""
        start, self.used = self.used, self.used + padded(size, PAGE)
        return self.data[start : start + size]

    def take_matrix(self, n: int, k: int, itemsize: int = 2) -> Tensor:
        """Return storage for a packed [n, k] matrix: int32 [panels, words, PANEL]."""
        shape = (padded(n, PANEL) // PANEL, padded(k * itemsize, K_BYTES) // 4, PANEL)
        return self.take(packed_bytes(n, k, itemsize)).view(torch.int32).view(shape)
