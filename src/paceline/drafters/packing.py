"""Rows of several requests, packed into one forward over the target's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from paceline.models.batch import BLOCK_SIZE, ForwardBatch


@dataclass(slots=True)
class Stretch:
    """Tokens at consecutive positions of a sequence, from `start` on, with KV in `blocks`."""

    blocks: Sequence[int]
    start: int
    ids: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


def pack(stretches: Sequence[Stretch]) -> ForwardBatch:
    """Return one forward's batch, with logits for the last row of each stretch."""
    return _packed(stretches, [len(stretch.ids) - 1 for stretch in stretches])


def pack_blocks(stretches: Sequence[Stretch]) -> ForwardBatch:
    """Return the same batch with logits for all rows but the first of each stretch."""
    return _packed(stretches, [1] * len(stretches))


def _packed(stretches: Sequence[Stretch], skipped: Sequence[int]) -> ForwardBatch:
    """Return the batch with logits for the rows of each stretch but the `skipped` first ones.

    A draft takes so little time that calls of numpy are a part of it. So the rows, which are few,
    are lists first, and one array holds all of them.
    """
    ids: list[int] = []
    positions: list[int] = []
    starts, logit_rows = [0], list[int]()
    for stretch, skip in zip(stretches, skipped, strict=True):
        ids += stretch.ids
        positions += range(stretch.start, stretch.end)
        logit_rows += range(starts[-1] + skip, len(ids))
        starts.append(len(ids))
    used = [-(-stretch.end // BLOCK_SIZE) for stretch in stretches]
    tables = np.zeros((len(stretches), max(used)), dtype=np.int32)
    for row, (stretch, count) in enumerate(zip(stretches, used, strict=True)):
        tables[row, :count] = stretch.blocks[:count]
    parts = ids, positions, starts, logit_rows
    ends = list(accumulate(map(len, parts), initial=0))
    together = np.array(list(chain(*parts)), dtype=np.int32)
    at = [together.ctypes.data + together.itemsize * start for start in ends]
    return ForwardBatch(
        ids=together[: ends[1]],
        positions=together[ends[1] : ends[2]],
        seq_starts=together[ends[2] : ends[3]],
        block_tables=tables,
        logit_rows=together[ends[3] :],
        addresses=(*at[:3], tables.ctypes.data, at[3]),
    )
