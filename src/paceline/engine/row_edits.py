"""What a request's options change in its rows of logits: bias, bans and penalties.

Everything that does not depend on the row is prepared once per request, as arrays. The counts that
penalties need grow with the output and are never built again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from paceline.core import Request


class TokenCounts:
    """How often each token occurs in a growing output, and which tokens a prompt holds.

    Tokens have places in the order of their first occurrence: `ids` int64 [n] and `counts`
    float64 [n] of the output alone are views that the next call may overwrite.
    """

    def __init__(self, prompt_ids: Iterable[int] = ()) -> None:
        self._ids = np.unique(np.fromiter(prompt_ids, dtype=np.int64))
        self._place = {token: place for place, token in enumerate(self._ids.tolist())}
        self._counts = np.zeros(len(self._ids))

    @property
    def ids(self) -> np.ndarray:
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> np.ndarray:
        return self._counts[: len(self._place)]

    def add(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            place = self._place.setdefault(token, len(self._place))
            if place == len(self._ids):
                self._grow()
            self._ids[place] = token
            self._counts[place] += 1

    def take_back(self, tokens: Iterable[int], places: int) -> None:
        """Undo the last add(), of `tokens`, before which there were `places` tokens."""
        for token in tokens:
            self._counts[self._place[token]] -= 1
        for token in self._ids[places : len(self._place)].tolist():
            del self._place[token]

    def __len__(self) -> int:
        return len(self._place)

    def _grow(self) -> None:
        room = np.zeros(len(self._ids) + 64)
        self._ids = np.concatenate([self._ids, room.astype(np.int64)])
        self._counts = np.concatenate([self._counts, room])


class RowEdits:
    """The edits of one request. Belongs to the engine's thread.

    In this order, each with the row's own history (the output and the draft before the row):
    `logit_bias`; minus infinity for every token that ends the output, below `min_tokens`;
    `repetition_penalty` over prompt and output (CTRL, arXiv 1909.05858: a positive logit is
    divided, another one multiplied); minus `frequency_penalty` times the count and
    `presence_penalty`, over the output, as OpenAI defines them.
    """

    def __init__(self, request: Request, device: torch.device) -> None:
        params = request.params
        self._request, self._device = request, device
        self._bias_ids = self._tensor(np.fromiter(params.logit_bias, dtype=np.int64))
        self._bias = self._tensor(np.fromiter(params.logit_bias.values(), dtype=np.float32))
        ends = request.eos_ids.union(params.stop_token_ids) if params.min_tokens else ()
        self._ends = self._tensor(np.fromiter(ends, dtype=np.int64))
        self._counts: TokenCounts | None = None
        if params.penalised:
            prompt = request.prompt_ids if params.repetition_penalty != 1 else ()
            self._counts = TokenCounts(prompt)
        self._counted = 0  # output tokens that the counts hold

    def apply(self, logits: torch.Tensor, draft: Sequence[int]) -> torch.Tensor:
        """The edited row: `logits` float32 [V] after the output and `draft`; a copy, or the very
        row where nothing changes it."""
        request, params = self._request, self._request.params
        banned = request.output_len + len(draft) < params.min_tokens
        if not (banned or params.logit_bias or self._counts is not None):
            return logits
        logits = logits.clone()
        if params.logit_bias:
            logits[self._bias_ids] += self._bias
        if banned:
            logits[self._ends] = -torch.inf
        if self._counts is not None:
            self._penalise(logits, self._counts, draft)
        return logits

    # -- inside -----------------------------------------------------------------------------------

    def _penalise(self, logits: torch.Tensor, counts: TokenCounts, draft: Sequence[int]) -> None:
        params = self._request.params
        counts.add(self._request.output_ids_from(self._counted))
        self._counted = self._request.output_len
        places = len(counts)
        counts.add(draft)
        ids, repetition = self._tensor(counts.ids), params.repetition_penalty
        values = logits[ids]
        if repetition != 1:
            values = torch.where(values > 0, values / repetition, values * repetition)
        if params.frequency_penalty or params.presence_penalty:
            amount = params.frequency_penalty * counts.counts
            amount += params.presence_penalty * (counts.counts > 0)
            values -= self._tensor(amount.astype(np.float32))
        logits[ids] = values
        counts.take_back(draft, places)

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def edits_of(request: Request, device: torch.device) -> RowEdits | None:
    """The edits that a request asks for; None for one whose rows stay as they are."""
    return RowEdits(request, device) if request.params.edited else None
