"""Rows of several requests, packed into one forward over the target's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    counts = [len(stretch.ids) for stretch in stretches]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    within = np.arange(starts[-1], dtype=np.int32) - np.repeat(starts[:-1], counts)
    positions = np.repeat(np.array([s.start for s in stretches], dtype=np.int32), counts) + within
    used = [-(-stretch.end // BLOCK_SIZE) for stretch in stretches]
    tables = np.zeros((len(stretches), max(used)), dtype=np.int32)
    for row, (stretch, count) in enumerate(zip(stretches, used, strict=True)):
        tables[row, :count] = stretch.blocks[:count]
    return ForwardBatch(
        ids=np.array([token for stretch in stretches for token in stretch.ids], dtype=np.int32),
        positions=positions,
        seq_starts=starts,
        block_tables=tables,
        logit_rows=starts[1:] - 1,
    )


def pack_blocks(stretches: Sequence[Stretch]) -> ForwardBatch:
    """Return the same batch with logits for all rows but the first of each stretch."""
    batch = pack(stretches)
    rows = np.arange(len(batch.ids), dtype=np.int32)
    batch.logit_rows = np.delete(rows, batch.seq_starts[:-1])
    return batch
