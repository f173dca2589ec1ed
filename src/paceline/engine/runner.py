"""Forwards of the target: of the scheduled rows of a step, and of rows that belong to nobody."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.core import ModelError, Request
from paceline.core.spans import OFF, Spans
from paceline.engine.scheduler import Scheduled
from paceline.models.batch import BLOCK_SIZE, ForwardBatch, ForwardOutput, Network

TRIED_ROWS = 8


class Runner:
    """Owns the target network and the block tables of the running requests, which only grow by the
    blocks that were added: a step does not repack what it knew."""

    def __init__(self, network: Network, *, max_num_seqs: int, max_model_len: int) -> None:
        self.network = network
        self._spans: Spans = OFF
        max_blocks = -(-max_model_len // BLOCK_SIZE) + 1
        self._tables = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self._written = [0] * max_num_seqs
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._row_of: dict[str, int] = {}

    def begin(self, request: Request) -> None:
        row = self._row_of[request.id] = self._free_rows.pop()
        self._written[row] = 0

    def end(self, request: Request) -> None:
        row = self._row_of.pop(request.id, None)
        if row is not None:
            self._free_rows.append(row)

    def forward(
        self, scheduled: Sequence[Scheduled], feature_layers: tuple[int, ...] = ()
    ) -> ForwardOutput:
        """Compute every scheduled row; logits come back for the rows that a token hangs on."""
        with self._spans("forward"):
            with self._spans("pack"):
                batch = self.pack(scheduled)
            return self.network.forward(batch, feature_layers)

    def record(self, spans: Spans) -> None:
        """Forwards tell `spans` what they are made of."""
        self._spans = spans
        self.network.record(spans)

    def pack(self, scheduled: Sequence[Scheduled]) -> ForwardBatch:
        ids: list[int] = []
        starts = [0]
        positions: list[np.ndarray] = []
        logit_rows: list[int] = []
        for entry in scheduled:
            end = entry.start + entry.count
            ids += entry.request.tokens[entry.start : end]
            ids += entry.draft.verified
            positions.append(np.arange(entry.start, entry.start + entry.rows, dtype=np.int32))
            logit_rows += [starts[-1] + row for row in entry.scored]
            starts.append(len(ids))
            if entry.samples:
                logit_rows += range(len(ids) - 1 - len(entry.draft), len(ids))
        return ForwardBatch(
            ids=np.array(ids, dtype=np.int32),
            positions=np.concatenate(positions),
            seq_starts=np.array(starts, dtype=np.int32),
            block_tables=self._block_tables(scheduled),
            logit_rows=np.array(logit_rows, dtype=np.int32),
        )

    def _block_tables(self, scheduled: Sequence[Scheduled]) -> np.ndarray:
        rows, longest = [], 1
        for entry in scheduled:
            blocks = entry.request.blocks
            row = self._row_of[entry.request.id]
            if self._written[row] < len(blocks):
                self._tables[row, self._written[row] : len(blocks)] = blocks[self._written[row] :]
                self._written[row] = len(blocks)
            rows.append(row)
            longest = max(longest, -(-(entry.start + entry.rows) // BLOCK_SIZE))
        return np.ascontiguousarray(self._tables[rows, :longest])


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
