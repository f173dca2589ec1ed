"""The edits that a request's options make to its rows of logits: bias, bans and penalties.

Everything that depends neither on the row nor on the choice is prepared once, as arrays, where a
request is admitted: tables may be as long as the vocabulary, and steps do not wait for them. The
counts that penalties need grow with the output and are never built again. numpy edits the rows, on
the CPU: for one row it takes a fraction of torch's time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from paceline.core import Request, SamplingParams
from paceline.core.request import Prepared


class TokenCounts:
    """The amounts that frequency and presence penalties take from the tokens of a growing output.

    Tokens have places in the order of their first occurrence, those of the prompt first. The next
    call may overwrite the arrays that the properties give.
    """

    def __init__(
        self, prompt_ids: Iterable[int] = (), frequency: float = 0.0, presence: float = 0.0
    ) -> None:
        self._frequency, self._presence = frequency, presence
        self._ids = np.unique(np.fromiter(prompt_ids, dtype=np.int64))
        self._place = {token: place for place, token in enumerate(self._ids.tolist())}
        self._counts = [0] * len(self._ids)
        self._amounts = np.zeros(len(self._ids), dtype=np.float32)

    @property
    def ids(self) -> np.ndarray:
        """int64 [n]"""
        return self._ids[: len(self._place)]

    @property
    def amounts(self) -> np.ndarray:
        """float32 [n], 0 for a token of the prompt alone"""
        return self._amounts[: len(self._place)]

    def add(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            place = self._place.get(token)
            if place is None:
                place = self._place[token] = len(self._counts)
                self._counts.append(0)
                if place == len(self._ids):
                    self._ids = np.concatenate([self._ids, np.zeros(64, dtype=np.int64)])
                    self._amounts = np.concatenate([self._amounts, np.zeros(64, np.float32)])
                self._ids[place] = token
            self._count(place, 1)

    def take_back(self, tokens: Iterable[int], places: int) -> None:
        """Undo the last add(), of `tokens`, before which there were `places` tokens."""
        for token in tokens:
            self._count(self._place[token], -1)
        for token in self._ids[places : len(self._place)].tolist():
            del self._place[token]
        del self._counts[places:]

    def copy(self) -> TokenCounts:
        other = copy.copy(self)
        other._ids, other._amounts = self._ids.copy(), self._amounts.copy()
        other._place, other._counts = dict(self._place), list(self._counts)
        return other

    def __len__(self) -> int:
        return len(self._place)

    def _count(self, place: int, step: int) -> None:
        count = self._counts[place] = self._counts[place] + step
        self._amounts[place] = self._frequency * count + self._presence if count else 0.0


class RowTables(Prepared):
    """The tables of all choices of a request. Once the request is queued they belong to the
    engine's thread."""

    def __init__(
        self, params: SamplingParams, prompt_ids: Sequence[int], eos_ids: frozenset[int]
    ) -> None:
        self.stop_ids = frozenset(params.stop_token_ids)
        self._bias_ids = np.fromiter(params.logit_bias, dtype=np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), dtype=np.float32)
        ends = eos_ids | self.stop_ids if params.min_tokens else ()
        self._ends = np.fromiter(ends, dtype=np.int64)
        self._shifts: dict[bool, np.ndarray] = {}
        self.counts: TokenCounts | None = None  # of the prompt, to be copied
        if params.penalised:
            prompt = prompt_ids if params.repetition_penalty != 1 else ()
            self.counts = TokenCounts(prompt, params.frequency_penalty, params.presence_penalty)

    def shift(self, banned: bool, vocab: int) -> np.ndarray:
        """Return what biases, and bans if `banned`, add to a row: float32 [V], made when needed."""
        if banned not in self._shifts:
            shift = np.zeros(vocab, dtype=np.float32)
            shift[self._bias_ids] = self._bias
            if banned:
                shift[self._ends] = -np.inf
            self._shifts[banned] = shift
        return self._shifts[banned]


def tables_of(request: Request) -> RowTables:
    """Return the tables of a request, which are made here if admission has not made them."""
    if not isinstance(request.prepared, RowTables):
        request.prepared = RowTables(request.params, request.prompt_ids, request.eos_ids)
    return request.prepared


class RowEdits:
    """The edits of one request. Belongs to the engine's thread.

    In this order, each with the row's own history (the output and the draft before the row):
    `logit_bias`; minus infinity for every token that ends the output, below `min_tokens`;
    `repetition_penalty` over prompt and output (CTRL, arXiv 1909.05858: a positive logit is
    divided, another one multiplied); minus `frequency_penalty` times the count and
    `presence_penalty`, over the output, as OpenAI defines them.
    """

    def __init__(self, request: Request, device: torch.device) -> None:
        self._request, self._device, self._tables = request, device, tables_of(request)
        self._row = np.empty(0, dtype=np.float32)  # the last edited row: its memory is in cache
        counts = self._tables.counts
        self._counts = None if counts is None else counts.copy()
        self._counted = 0  # output tokens that the counts hold
        self._ahead: list[int] = []  # tokens of a draft that they hold behind those
        self._places = len(self._counts or ())  # how many tokens they had before these

    def apply(self, logits: torch.Tensor, draft: Sequence[int]) -> torch.Tensor:
        """The edited row: `logits` float32 [V] after the output and `draft`; a copy that the next
        call overwrites, or the very row where nothing changes it."""
        request, params = self._request, self._request.params
        banned = request.output_len + len(draft) < params.min_tokens
        shifted = banned or bool(params.logit_bias)
        if not shifted and self._counts is None:
            return logits
        given = logits.cpu().numpy()
        if len(self._row) != len(given):
            self._row = np.empty_like(given)
        if shifted:
            np.add(given, self._tables.shift(banned, len(given)), out=self._row)
        else:
            np.copyto(self._row, given)
        if self._counts is not None:
            self._count(self._counts, draft)
            self._penalise(self._row, self._counts)
        return torch.from_numpy(self._row).to(self._device)

    def _penalise(self, row: np.ndarray, counts: TokenCounts) -> None:
        ids, repetition = counts.ids, self._request.params.repetition_penalty
        values = row[ids]
        if repetition != 1:
            values = np.where(values > 0, values / repetition, values * repetition)
        values -= counts.amounts
        row[ids] = values

    def _count(self, counts: TokenCounts, draft: Sequence[int]) -> None:
        """Bring the counts to the output and `draft`. The rows of a round mostly come in order:
        then only the last token of the draft is new."""
        known = len(self._ahead)
        if self._counted == self._request.output_len and self._ahead == list(draft[:known]):
            counts.add(draft[known:])
        else:
            counts.take_back(self._ahead, self._places)
            counts.add(self._request.output_ids_from(self._counted))
            self._counted, self._places = self._request.output_len, len(counts)
            counts.add(draft)
        self._ahead = list(draft)


def edits_of(request: Request, device: torch.device) -> RowEdits | None:
    """The edits that a request asks for; None for one whose rows stay as they are."""
    return RowEdits(request, device) if request.params.edited else None
