"""Weights as the kernels read them: one copy, in panels of 16 outputs.

A matrix [n, k] becomes [ceil(n / 16)][ceil(k / 32) * 16][16][2] bf16: pairs along k, side by side
for 16 outputs, zeros in the padding. A pair row is one 64-byte vector, 16 of them one AMX tile.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch

LANES = 16
PAGE = 4096


def padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def packed_bytes(n: int, k: int) -> int:
    return padded(n, LANES) * padded(k, 32) * 2


def pack(weight: torch.Tensor, out: torch.Tensor) -> None:
    """Writes `weight` [n, k] into `out`, int32 [panels, pairs, 16]."""
    panels, pairs, _ = out.shape
    n, k = weight.shape
    rows = weight.to(torch.bfloat16).contiguous()
    if (n, k) != (panels * LANES, pairs * 2):
        whole = rows.new_zeros(panels * LANES, pairs * 2)
        whole[:n, :k] = rows
        rows = whole
    out.copy_(rows.view(torch.int32).view(panels, LANES, pairs).transpose(1, 2))


def unpack(packed: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """The matrix [n, k] bf16 that `packed`, int32 [panels, pairs, 16], was made from."""
    panels, pairs, _ = packed.shape
    rows = packed.transpose(1, 2).contiguous().view(torch.bfloat16)
    return rows.view(panels * LANES, pairs * 2)[:n, :k]


def unpack_rows(packed: torch.Tensor, ids: torch.Tensor, k: int) -> torch.Tensor:
    """Rows `ids` of the matrix [n, k] that `packed` was made from, bf16 [len(ids), k]."""
    rows = packed[ids // LANES, :, ids % LANES]  # [ids, pairs] int32
    return rows.contiguous().view(torch.bfloat16)[:, :k].contiguous()


class Arena:
    """One zeroed run of memory, on huge pages where there are any, handed out piece by piece."""

    def __init__(self, size: int) -> None:
        size = padded(size, PAGE)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self.data = torch.frombuffer(memory, dtype=torch.uint8)
        self.used = 0

    def take(self, size: int) -> torch.Tensor:
        """The next `size` bytes, uint8, page-aligned."""
        start, self.used = self.used, self.used + padded(size, PAGE)
        return self.data[start : start + size]

    def take_matrix(self, n: int, k: int) -> torch.Tensor:
        """Room for a packed [n, k] matrix: int32 [panels, pairs, 16]."""
        shape = (padded(n, LANES) // LANES, padded(k, 32) // 2, LANES)
        return self.take(packed_bytes(n, k)).view(torch.int32).view(shape)


def arena_bytes(shapes: Sequence[tuple[int, int]]) -> int:
    """Size of an arena for packed matrices of these shapes."""
    return sum(padded(packed_bytes(n, k), PAGE) for n, k in shapes)
