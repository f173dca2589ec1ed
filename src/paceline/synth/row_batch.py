"""A batch of rows that decode together: a fixed number of them, each with its own text and
temperature, many steps between two looks of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paceline.core import PacelineError
from paceline.models.dense_decoder import DenseDecoder

LOOK = 16  # steps between two looks of the host
WARM_UPS = 3  # steps before a graph is recorded, as torch advises
PREFILL_ROWS = 16384  # tokens of prompts in one forward, padding included
PREFILL_UNIT = 16  # prompts are filled up to a multiple of so many tokens
NOT_FINITE = -1  # in place of a token: the row's logits held NaN or infinity
BATCH_ROWS = 2048  # most rows: more of them hardly make a token cheaper
MEMORY_SHARE = 0.85  # of the memory that is free, for keys, values and logits
LOGIT_BYTES = 24  # for each row and token of the vocabulary: logits and noise of a step


class CannotRecord(PacelineError):
    """The decode step cannot be recorded as a CUDA graph."""


@dataclass(frozen=True, slots=True)
class NewText:
    """A prompt of at least one token, and what row is to go on from it."""

    row: int
    prompt_ids: Sequence[int]
    temperature: float


class RowBatch:
    """The state of all rows on the device. A step takes the last token of each row and draws the
    next one, argmax(logits / temperature + Gumbel noise), where the noise at temperature 0 is 0.

    On CUDA the step is recorded as a graph, one for each length that attention reads. The noise
    comes from torch's generator, so a text at a temperature above 0 depends on the batch it is in.
    A row that nobody needs any more goes on until it gets a new text: what it says is not read.
    """

    def __init__(self, decoder: DenseDecoder, seed: int) -> None:
        self.decoder, self.rows = decoder, decoder.rows
        device = self.device = decoder.network.device
        self._ids = torch.zeros(self.rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros_like(self._ids)
        self._inverse = torch.ones(self.rows, 1, device=device)  # 1 / temperature; 1 at 0
        self._noise = torch.zeros(self.rows, 1, device=device)  # factor of the noise: 1, or 0
        self._said = torch.zeros_like(self._ids)  # what the last step drew, or NOT_FINITE
        self._look = torch.zeros(LOOK, self.rows, dtype=torch.int64, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        if device.type == "cuda":
            # The generator that graphs know of themselves.
            self._random = torch.cuda.default_generators[torch.cuda.current_device()]
            self._pool = torch.cuda.graph_pool_handle()
        else:
            self._random = torch.Generator()
        self._random.manual_seed(seed % 2**63)

    def begin(self, texts: Sequence[NewText]) -> None:
        """Give rows new texts. Their prompts are computed but for the last token, which the next
        step takes."""
        if not texts:
            return
        self._prefill([text for text in texts if len(text.prompt_ids) > 1])
        numbers = [(t.row, t.prompt_ids[-1], len(t.prompt_ids) - 1) for t in texts]
        rows, ids, positions = torch.tensor(numbers, device=self.device).T
        self._ids.index_copy_(0, rows, ids)
        self._positions.index_copy_(0, rows, positions)
        scales = [(1 / (t.temperature or 1), float(t.temperature > 0)) for t in texts]
        inverse, noise = torch.tensor(scales, device=self.device).T
        self._inverse.index_copy_(0, rows, inverse[:, None])
        self._noise.index_copy_(0, rows, noise[:, None])

    def launch(self, longest: int) -> None:
        """Queue LOOK steps; the longest row that counts stands at position `longest`. Raises
        CannotRecord."""
        length = self.decoder.reach(longest + LOOK)
        step = self._graph(length).replay if self.device.type == "cuda" else None
        for at in range(LOOK):
            if step is None:
                self._step(length)
            else:
                step()
            self._look[at].copy_(self._said)

    def read(self) -> np.ndarray:
        """Wait for the queued steps, and return what each drew, int64 [LOOK, rows]."""
        return self._look.cpu().numpy()

    @torch.no_grad()
    def _step(self, length: int) -> None:
        logits = self.decoder.step(self._ids, self._positions, length)
        noise = torch.empty(logits.shape, dtype=torch.float32, device=self.device)
        noise.exponential_(generator=self._random).log_()  # the negative of Gumbel noise
        scores = (logits * self._inverse).addcmul_(noise, self._noise, value=-1)
        best, tokens = scores.max(-1)
        self._said.copy_(tokens.masked_fill(~torch.isfinite(best), NOT_FINITE))
        self._ids.copy_(tokens)
        self._positions.add_(1).clamp_(max=self.decoder.context - 1)

    def _prefill(self, texts: Sequence[NewText]) -> None:
        """Compute prompts but for their last tokens, those of like length together."""
        group: list[NewText] = []
        for text in sorted(texts, key=lambda text: len(text.prompt_ids)):
            if (len(group) + 1) * self._width(text) > PREFILL_ROWS:
                self._prefill_group(group)
                group = []
            group.append(text)
        self._prefill_group(group)

    def _prefill_group(self, texts: Sequence[NewText]) -> None:
        if not texts:
            return
        ids = np.zeros((len(texts), self._width(texts[-1])), np.int64)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text.prompt_ids) - 1] = text.prompt_ids[:-1]
        rows = torch.tensor([text.row for text in texts], device=self.device)
        self.decoder.prefill(rows, torch.from_numpy(ids).to(self.device))

    def _width(self, text: NewText) -> int:
        units = -(-(len(text.prompt_ids) - 1) // PREFILL_UNIT)
        return min(self.decoder.context, units * PREFILL_UNIT)

    def _graph(self, length: int) -> torch.cuda.CUDAGraph:
        """Return the graph of a step, recorded when it is first needed. Raises CannotRecord."""
        if length not in self._graphs:
            state = [(kept, kept.clone()) for kept in (self._ids, self._positions)]
            try:
                self._graphs[length] = self._record(length)
            except RuntimeError as error:
                raise CannotRecord(
                    f"the decode step of {self.rows} rows cannot be recorded as a CUDA graph "
                    f"({error}); with --backend torch the engine answers, without graphs"
                ) from error
            for kept, before in state:
                kept.copy_(before)
        return self._graphs[length]

    def _record(self, length: int) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self._step(length)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(length)
        return graph


def rows_that_fit(row_bytes: int, vocab_size: int, free: int) -> int:
    """Return how many rows of `row_bytes` bytes of keys and values fit into `free` bytes, at most
    BATCH_ROWS, and a multiple of 64 where there are so many."""
    rows = min(BATCH_ROWS, int(free * MEMORY_SHARE) // (row_bytes + LOGIT_BYTES * vocab_size))
    return rows // 64 * 64 if rows >= 64 else rows
