"""Answers from a large batch of rows that decode in step, for a GPU. An answer may depend on its
batch."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch

from paceline.core import FinishReason, InvalidRequest, SamplingParams
from paceline.dataset.loops import looping
from paceline.engine.config import EngineConfig
from paceline.engine.machine import use_threads
from paceline.engine.runner import try_out
from paceline.engine.text import TextStream
from paceline.models.dense_decoder import DenseDecoder
from paceline.models.loader import LoadedModel
from paceline.models.network import TorchNetwork
from paceline.models.networks import build_network
from paceline.models.tokenizer import Pieces
from paceline.synth.answer import AHEAD, CUT, Ask, Speed, TargetAnswer, no_text
from paceline.synth.prompts import keyed
from paceline.synth.row_batch import LOOK, NOT_FINITE, NewText, RowBatch, rows_that_fit

# What a request may ask for: every other field has to ask for nothing. A seed is taken, and counts
# only for the first request: see BatchAnswerer.
TAKEN = frozenset({
    "temperature", "max_tokens", "stop", "stop_token_ids", "seed", "skip_special_tokens",
})  # fmt: skip
NOTHING = SamplingParams()


@dataclass(slots=True)
class RowText:
    """A request in its row. `ids` are the tokens of its answer so far; `text` is there where it has
    stop texts."""

    ask: Ask
    ends: frozenset[int]
    limit: int
    text: TextStream | None
    ids: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.ask.prompt_ids) + len(self.ids)

    def add(self, tokens: list[int], may_end: bool) -> TargetAnswer | None:
        """Take the tokens that the row said, up to the end of the answer. Return the answer where
        it ends, for the reasons and with the tokens that engine.output has. `may_end` is False
        where no token of them ends an answer."""
        if not may_end and self.text is None and len(self.ids) + len(tokens) < self.limit:
            self.ids += tokens
            return None
        for token in tokens:
            if token == NOT_FINITE:
                reason, fault = FinishReason.ERROR, "model_not_finite"
                return TargetAnswer(self.ask.index, tuple(self.ids), reason.value, fault)
            self.ids.append(token)
            if token in self.ends:
                return self._answer(FinishReason.STOP)
            if self.text is not None:
                self.text.push(token)
                if self.text.stopped_by is not None:
                    return self._answer(FinishReason.STOP)
            if len(self.ids) >= self.limit:
                return self._answer(FinishReason.LENGTH)
        return None

    def cut(self) -> TargetAnswer:
        """Return the answer as far as it is."""
        return self._answer(FinishReason.LENGTH)

    def _answer(self, reason: FinishReason) -> TargetAnswer:
        if self.text is not None:
            self.text.flush()  # a stop text may be seen only now
            if self.text.stopped_by is not None:
                reason = FinishReason.STOP
        return TargetAnswer(self.ask.index, tuple(self.ids), reason.value)


class BatchAnswerer:
    """Answers requests with the rows of one batch (row_batch.RowBatch). A row gets the next request
    at the first look of the host after its answer ended.

    The device works while the caller does: wait() queues the next steps before it returns.

    Greedy answers are the engine's, up to the rounding of products with more rows. At a temperature
    above 0 they have the engine's distribution, but other noise: it is drawn for the whole batch,
    with a seed made of the first request, and a request's own seed does not count. So another
    number of rows, or a run that is continued, gives another text.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        """`max_num_seqs` rows, or as many as memory allows (BATCH_ROWS at most) where it is the
        default. Raises ModelError, and InvalidRequest for a device or an amount of memory that
        cannot be had, and for options that the batch does not honour."""
        why = refused_option(config)
        if why is not None:
            raise InvalidRequest(*why)
        use_threads(config.threads)
        self._loaded, self._context = loaded, config.max_model_len or loaded.max_context
        network, _ = build_network(
            loaded,
            dtype=config.dtype,
            device=config.device,
            backend="torch",
            max_positions=self._context + 1,
        )
        assert isinstance(network, TorchNetwork)
        network.allocate_kv(1)
        try_out(network, loaded.name, longest=self._context)
        network.allocate_kv(0)
        rows = _rows(network, self._context, config)
        self._decoder = DenseDecoder(network, rows, self._context)
        self._batch: RowBatch | None = None
        self._pieces = Pieces(loaded.tokenizer)
        self._queue: deque[Ask] = deque()
        self._ends: set[int] = set()  # tokens that end some answer
        self._texts: dict[int, RowText] = {}  # by row
        self._free = list(range(rows - 1, -1, -1))
        self._tails = no_text(rows)  # the last tokens of each row's answer
        self._launched = False
        self._generated = self._prompt_tokens = self._steps = self._running = 0
        self._started, self._seconds = 0.0, 0.0
        self.what = f"batch: {config.dtype}, {config.device}, {CUT}"

    @property
    def rows(self) -> int:
        return self._decoder.rows

    @property
    def in_flight(self) -> int:
        return len(self._queue) + len(self._texts)

    @property
    def capacity(self) -> int:
        # The first steps wait for no more requests than there are rows.
        batches = AHEAD if self._launched else 1
        return batches * self.rows - self.in_flight

    def submit(self, ask: Ask) -> None:
        """Queue a request. Raises InvalidRequest for one that the batch cannot answer as asked."""
        field = refused_field(ask.params)
        if field is not None:
            expected = "its default: a batch of rows does not do that; the engine does"
            raise InvalidRequest(field, getattr(ask.params, field), expected)
        room = self._context - len(ask.prompt_ids)
        if not ask.prompt_ids or room < (ask.params.max_tokens or 1):
            expected = f"1 to {self._context} tokens, those of the answer included"
            raise InvalidRequest("prompt", f"{len(ask.prompt_ids)} tokens", expected)
        self._started = self._started or time.perf_counter()
        if self._batch is None:
            self._batch = RowBatch(self._decoder, keyed(ask.params.seed, ask.index))
        self._queue.append(ask)

    def wait(self) -> list[TargetAnswer]:
        answers: list[TargetAnswer] = []
        while self.in_flight and not answers:
            if not self._launched:
                self._launch()
            answers = self._look()
            self._launch()  # the device works on while these are dealt with
        return answers

    def speed(self) -> Speed:
        batch = self._running / self._steps if self._steps else 0.0
        return Speed(self._generated, self._prompt_tokens, self._seconds, batch)

    def close(self) -> None:
        if self._launched:
            self._read()
        self._queue.clear()
        self._texts.clear()
        self._free = list(range(self.rows - 1, -1, -1))

    def _launch(self) -> None:
        """Put waiting requests into free rows, and queue the next steps, if there are any."""
        new = []
        while self._queue and self._free:
            ask, row = self._queue.popleft(), self._free.pop()
            self._texts[row] = self._opened(ask)
            self._tails[row] = no_text(1)
            self._prompt_tokens += len(ask.prompt_ids)
            new.append(NewText(row, ask.prompt_ids, ask.params.temperature))
        if self._texts:
            assert self._batch is not None
            self._batch.begin(new)
            self._batch.launch(max(text.length for text in self._texts.values()) - 1)
            self._launched = True

    def _opened(self, ask: Ask) -> RowText:
        params, text = ask.params, None
        if params.stop:
            text = TextStream(
                self._loaded.tokenizer,
                ask.prompt_ids,
                params.stop,
                skip_special_tokens=params.skip_special_tokens,
                pieces=self._pieces,
            )
        ends = self._loaded.eos_ids.union(params.stop_token_ids)
        self._ends |= ends
        limit = params.max_tokens or self._context - len(ask.prompt_ids)
        return RowText(ask, ends, limit, text)

    def _look(self) -> list[TargetAnswer]:
        """Wait for the queued steps, and return the answers that ended in them."""
        said = self._read()
        ends = np.isin(said, [*self._ends, NOT_FINITE])
        may_end: list[bool] = np.logical_or.reduce(ends, 0).tolist()
        self._tails = np.concatenate([self._tails[:, LOOK:], said.T], 1)
        loops: list[bool] = looping(self._tails).tolist()
        tokens, answers = said.T.tolist(), []
        self._running, self._steps = self._running + len(self._texts), self._steps + 1
        for row, text in list(self._texts.items()):
            before = len(text.ids)
            answer = text.add(tokens[row], may_end[row])
            self._generated += len(text.ids) - before
            if answer is None and loops[row] and text.ask.cut_at_loop:
                answer = text.cut()
            if answer is not None:
                if answer.fault is not None:
                    self._decoder.clear(row)
                del self._texts[row]
                self._free.append(row)
                answers.append(answer)
        self._seconds = time.perf_counter() - self._started
        return answers

    def _read(self) -> np.ndarray:
        assert self._batch is not None
        self._launched = False
        return self._batch.read()


def refused_field(params: SamplingParams) -> str | None:
    """Return the first field of a request that a batch of rows does not honour, None for none."""
    names = (name for name in params.__dataclass_fields__ if name not in TAKEN)
    return next((name for name in names if getattr(params, name) != getattr(NOTHING, name)), None)


def refused_option(config: EngineConfig) -> tuple[str, object, str] | None:
    """Return the first option that a batch of rows does not honour, its value and what it expects;
    None for none."""
    if config.drafter_specs:
        return "drafter", config.drafter, "none: a batch of rows does not draft"
    if config.quantize is not None:
        return "quantize", config.quantize, "nothing: a batch of rows is not quantised"
    if config.backend != "auto":
        return "backend", config.backend, "auto: the other ones are the engine's"
    return None


def _rows(network: TorchNetwork, context: int, config: EngineConfig) -> int:
    """Return the number of rows. Raises InvalidRequest."""
    row_bytes = context * network.kv_spec.bytes_per_token
    asked = config.max_num_seqs
    if config.kv_memory is not None:
        fit = config.kv_memory // row_bytes
        if not fit:
            expected = f"at least {row_bytes} bytes: {context} tokens of one row"
            raise InvalidRequest("kv_memory", config.kv_memory, expected)
        asked = min(fit, asked) if asked != EngineConfig().max_num_seqs else fit
    if asked != EngineConfig().max_num_seqs or network.device.type != "cuda":
        return asked
    free, _ = torch.cuda.mem_get_info(network.device)
    rows = rows_that_fit(row_bytes, network.vocab_size, free)
    if not rows:
        expected = f"a device with memory for a row: {free >> 20} MiB are free here"
        raise InvalidRequest("device", config.device, expected)
    return rows
