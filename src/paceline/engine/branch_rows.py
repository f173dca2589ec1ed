"""The rows of a step's branches, as one forward takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from paceline.engine.branches import tables
from paceline.engine.scheduler import Scheduled
from paceline.models.batch import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class BranchRows:
    """Rows behind those of all requests.

    starts                  rows where the branches end, as sequences of the forward
    tables                  their block tables
    copies                  (source, target) of the blocks to copy before the forward
    share_starts, sharers   as ForwardBatch has them, for all rows of the step
    """

    ids: list[int]
    positions: list[int]
    starts: list[int]
    tables: list[list[int]]
    copies: list[tuple[int, int]]
    share_starts: np.ndarray
    sharers: np.ndarray


def branch_rows(scheduled: Sequence[Scheduled], starts: Sequence[int]) -> BranchRows:
    """Lay out the branches of a step whose requests' rows begin at `starts`; the last entry is the
    number of those rows."""
    ids: list[int] = []
    positions: list[int] = []
    ends: list[int] = []
    block_tables: list[list[int]] = []
    copies: list[tuple[int, int]] = []
    shares: list[tuple[int, int]] = []
    end = starts[-1]
    for entry, first_row in zip(scheduled, starts, strict=False):
        start, count, branches = entry.start, entry.count, entry.draft.branches
        anchor, blocks = start + count - 1, entry.request.blocks
        block_tables += tables(blocks, branches, anchor)
        nodes = [*range(first_row + count, first_row + entry.rows)]
        nodes += range(end, end + entry.draft.branch_rows)
        for branch in branches:
            sequence, place = len(scheduled) + len(ends), anchor + 1 + branch.shared
            ids += branch.own_tokens
            positions += range(place, place + branch.count)
            block = place // BLOCK_SIZE
            first = block * BLOCK_SIZE  # from here on its blocks are private
            if first < start:
                copies.append((blocks[block], branch.blocks[0]))
            # What this forward computes of the private blocks before the branch's own nodes.
            before = [*range(first_row + max(0, first - start), first_row + count)]
            before += [
                nodes[node] for node in branch.nodes[max(0, first - anchor - 1) : branch.shared]
            ]
            shares += [(row, sequence) for row in before]
            end += branch.count
            ends.append(end)
    shares.sort()
    counts = [0] * (end + 1)
    for row, _ in shares:
        counts[row + 1] += 1
    return BranchRows(
        ids,
        positions,
        ends,
        block_tables,
        copies,
        share_starts=np.array([*accumulate(counts)], dtype=np.int32),
        sharers=np.array([sequence for _, sequence in shares], dtype=np.int32),
    )
