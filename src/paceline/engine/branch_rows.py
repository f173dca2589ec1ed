"""The rows of a step's branches, as one forward takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.engine.branches import Branch, tables
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
        branches, anchor = entry.draft.branches, entry.start + entry.count - 1
        block_tables += tables(entry.request.blocks, branches, anchor)
        nodes = [*range(first_row + entry.count, first_row + entry.rows)]
        nodes += range(end, end + entry.draft.branch_rows)
        for branch in branches:
            ids += branch.own_tokens
            place = anchor + 1 + branch.shared
            positions += range(place, place + branch.count)
            block = branch.block_span(anchor).start
            if block * BLOCK_SIZE < entry.start:
                copies.append((entry.request.blocks[block], branch.blocks[0]))
            sequence = len(scheduled) + len(ends)
            shares += [(row, sequence) for row in _before(entry, branch, first_row, nodes)]
            end += branch.count
            ends.append(end)
    shares.sort()
    counts = np.bincount([row for row, _ in shares], minlength=end)
    return BranchRows(
        ids,
        positions,
        ends,
        block_tables,
        copies,
        share_starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        sharers=np.array([sequence for _, sequence in shares], dtype=np.int32),
    )


def _before(
    entry: Scheduled, branch: Branch, first_row: int, nodes: Sequence[int]
) -> Iterator[int]:
    """Yield the rows of the step that lie before a branch's first own node, in the same block.
    `nodes` are the rows of the draft's nodes."""
    anchor = entry.start + entry.count - 1
    block = branch.block_span(anchor).start
    for position in range(max(block * BLOCK_SIZE, entry.start), anchor + 1 + branch.shared):
        if position <= anchor:
            yield first_row + position - entry.start
        else:
            yield nodes[branch.nodes[position - anchor - 1]]
