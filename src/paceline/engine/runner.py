"""Forwards of the target: of the scheduled rows of a step, and of rows that belong to nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from paceline.core import ModelError, Request
from paceline.core.spans import OFF, Spans
from paceline.engine.branch_rows import branch_rows
from paceline.engine.branches import tables
from paceline.engine.scheduler import Scheduled
from paceline.models.batch import BLOCK_SIZE, ForwardBatch, ForwardOutput, Network

TRIED_ROWS = 8


class Runner:
    """Owns the target network and the arrays of its batches. The block tables of the running
    requests only grow by the blocks that were added, and every batch is written into the same
    arrays: a step does not repack what it knew."""

    def __init__(
        self, network: Network, *, max_num_seqs: int, max_model_len: int, branches: int = 0
    ) -> None:
        """A step has up to `branches` branches."""
        self.network = network
        self._spans: Spans = OFF
        max_blocks = -(-max_model_len // BLOCK_SIZE) + 1
        self._tables = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self._written = [0] * max_num_seqs
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._row_of: dict[str, int] = {}
        self._arrays = _Arrays(max_num_seqs + branches, max_blocks)
        self._rows: list[int] = []  # of the tables, as the last batch had them

    def begin(self, request: Request) -> None:
        row = self._row_of[request.id] = self._free_rows.pop()
        self._written[row] = 0

    def end(self, request: Request) -> None:
        row = self._row_of.pop(request.id, None)
        if row is not None:
            self._free_rows.append(row)

    def forward(
        self,
        scheduled: Sequence[Scheduled],
        feature_layers: tuple[int, ...] = (),
        *,
        logits: bool = True,
    ) -> ForwardOutput:
        """Compute every scheduled row. What the head says comes back for the rows that a token
        hangs on; without `logits` it need not be more than their argmax."""
        with self._spans("forward"):
            with self._spans("pack"):
                batch = self.pack(scheduled)
                batch.logits = logits
            if batch.sharers is not None and (copies := self._branches.copies):
                self.network.copy_blocks(*zip(*copies, strict=True))
            return self.network.forward(batch, feature_layers)

    def keep_branch(self, entry: Scheduled, number: int, accepted: int) -> None:
        """Make the first `accepted` tokens of a branch the request's own: copy the blocks that hold
        their keys and values."""
        blocks, anchor = entry.request.blocks, entry.start + entry.count - 1
        table = list(tables(blocks, entry.draft.branches, anchor))[number]
        pairs = list(zip(table, blocks, strict=False))[: (anchor + accepted) // BLOCK_SIZE + 1]
        copies = [pair for pair in pairs if pair[0] != pair[1]]
        self.network.copy_blocks(*zip(*copies, strict=True))

    def record(self, spans: Spans) -> None:
        """Forwards tell `spans` what they are made of."""
        self._spans = spans
        self.network.record(spans)

    def pack(self, scheduled: Sequence[Scheduled]) -> ForwardBatch:
        """Return the batch of a step. The next call overwrites it."""
        ids: list[int] = []
        positions: list[int] = []
        starts = [0]
        logit_rows: list[int] = []
        for entry in scheduled:
            start, first = entry.start, len(ids)
            if entry.rows == 1:
                ids.append(entry.request.tokens[start])
                positions.append(start)
            else:
                ids += entry.request.tokens[start : start + entry.count]
                ids += entry.draft.verified
                positions += range(start, start + entry.rows)
            end = len(ids)
            if entry.scored:
                logit_rows += [first + row for row in entry.scored]
            if entry.samples:
                logit_rows += range(first + entry.count - 1, end)
            starts.append(end)
        branches = None
        if any([entry.draft.branches for entry in scheduled]):
            branches = self._branches = branch_rows(scheduled, starts)
            logit_rows += range(starts[-1], branches.starts[-1])
            ids, positions = ids + branches.ids, positions + branches.positions
            starts = starts + branches.starts
        blocks = max(positions) // BLOCK_SIZE + 1
        batch = self._arrays.batch(starts, logit_rows, blocks)
        batch.ids[:] = ids
        batch.positions[:] = positions
        self._write_tables(scheduled)
        if branches is None:
            return batch
        for row, table in enumerate(branches.tables, len(scheduled)):
            self._arrays.tables[row, : len(table)] = table
        return replace(batch, share_starts=branches.share_starts, sharers=branches.sharers)

    def _write_tables(self, scheduled: Sequence[Scheduled]) -> None:
        """Write the block tables of the step's requests, in its order, where they have changed."""
        rows, written, changed = [], self._written, False
        for entry in scheduled:
            blocks = entry.request.blocks
            row = self._row_of[entry.request.id]
            if written[row] < len(blocks):
                self._tables[row, written[row] : len(blocks)] = blocks[written[row] :]
                written[row], changed = len(blocks), True
            rows.append(row)
        if changed or rows != self._rows:
            self._rows, most = rows, max(written[row] for row in rows)
            self._arrays.tables[: len(rows), :most] = self._tables[rows, :most]


class _Arrays:
    """The arrays that batches of up to `sequences` sequences are written into. Batches of equal
    shape share their views."""

    def __init__(self, sequences: int, blocks: int) -> None:
        self.tables = np.zeros((sequences, blocks), dtype=np.int32)
        self._starts = np.zeros(sequences + 1, dtype=np.int32)
        self._make_room(sequences)

    def _make_room(self, rows: int) -> None:
        self._ids, self._positions, self._logit_rows = np.zeros((3, rows), dtype=np.int32)
        arrays = self._ids, self._positions, self._starts, self.tables, self._logit_rows
        self._addresses = tuple(array.ctypes.data for array in arrays)
        self._last: tuple[list[int], list[int], int] | None = None

    def batch(self, starts: list[int], logit_rows: list[int], blocks: int) -> ForwardBatch:
        """Return a batch of sequences that begin at the rows `starts`, whose last entry is the
        number of rows, with `blocks` blocks in each table. Its ids, positions and tables are
        those of the batch before."""
        shape = starts, logit_rows, blocks
        if shape != self._last:
            rows, sequences, outputs = starts[-1], len(starts) - 1, len(logit_rows)
            if rows > len(self._ids):
                self._make_room(2 * rows)
            self._last = shape
            self._batch = ForwardBatch(
                ids=self._ids[:rows],
                positions=self._positions[:rows],
                seq_starts=self._starts[: sequences + 1],
                block_tables=self.tables[:sequences, :blocks],
                logit_rows=self._logit_rows[:outputs],
                addresses=self._addresses,
            )
            self._batch.seq_starts[:] = starts
            self._batch.logit_rows[:] = logit_rows
        return self._batch


def even_batch(
    ids: np.ndarray | Sequence[int], *, requests: int = 1, start: int = 0, block: int = 0
) -> ForwardBatch:
    """Rows of tokens `ids` [rows], shared evenly by requests whose texts begin `start` tokens
    before, over the KV blocks from `block` on. Every row's logits are wanted."""
    rows, each = len(ids), len(ids) // requests
    blocks = -(-(start + each) // BLOCK_SIZE)
    tables = np.arange(block, block + requests * blocks, dtype=np.int32)
    return ForwardBatch(
        ids=np.array(ids, dtype=np.int32),
        positions=np.tile(np.arange(start, start + each, dtype=np.int32), requests),
        seq_starts=np.arange(0, rows + 1, each, dtype=np.int32),
        block_tables=tables.reshape(requests, -1),
        logit_rows=np.arange(rows, dtype=np.int32),
    )


def timed_step(network: Network, rows: int, requests: int = 1, start: int = 0) -> None:
    """A forward of `rows` rows, shared evenly by `requests` whose texts began `start` tokens
    before, over blocks that nobody owns yet."""
    ids = [0] * (rows // requests * requests)
    network.forward(even_batch(ids, requests=requests, start=start))
    if network.device.type == "cuda":
        torch.cuda.synchronize(network.device)


@torch.inference_mode()
def try_out(network: Network, name: str, *, longest: int, block: int = 0) -> None:
    """Compute a few rows of tokens from all over the vocabulary, in a KV block that nobody owns.
    `longest` is the longest text in tokens that the network may see.

    Raises ModelError naming the model where a row holds NaN or infinity, or the same number for
    every token: weights can have the right shapes and be damaged all the same.
    """
    rows = min(TRIED_ROWS, BLOCK_SIZE, longest)
    output = network.forward(even_batch(np.linspace(0, network.vocab_size - 1, rows), block=block))
    remedy = "its weights are damaged; fetch or convert the model again"
    if not bool(output.finite.all()):
        raise ModelError(f"{name}: its logits hold NaN or infinity: {remedy}")
    if bool((output.logits.amax(-1) == output.logits.amin(-1)).any()):
        raise ModelError(f"{name}: its logits are the same for every token: {remedy}")
