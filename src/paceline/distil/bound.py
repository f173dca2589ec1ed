"""Restrict the larger model's distribution along an answer to what the answer's grammar allowed.

Without the grammar the larger model might begin with a sentence, or with a fence of Markdown. The
application never sees that, and a student that learnt it would leave the grammar more often than
before.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from paceline.core import Grammar
from paceline.engine.grammar import Compiler, GrammarState
from paceline.training.packs import Text

BITS = 32  # of a word of a mask


class Bounds:
    """Grammars by the numbers of the texts whose answers they bound.

    The constructor raises InvalidRequest for a grammar that does not compile.
    """

    def __init__(self, compiler: Compiler, grammars: Mapping[int, Grammar]) -> None:
        self._starts = {number: compiler.compile(each) for number, each in grammars.items()}
        self._words, self._eos_ids = -(-compiler.vocab_size // BITS), compiler.eos_ids
        compiler.close()

    def bind(
        self, text: Text, places: torch.Tensor, tokens: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """Return the probabilities of likely `tokens` int [m, k] at `places` int64 [m] of a text
        under its grammar: those that it rules out have none, and the others are scaled to 1, or all
        are 0 where it rules out all. Without a grammar `shares` float16 [m, k] stay."""
        if text.number not in self._starts:
            return shares
        allowed = torch.from_numpy(self._allowed(text, places.numpy(), tokens.numpy()))
        left = shares.float() * allowed
        return (left / left.sum(-1, keepdim=True).clamp(min=1e-30)).half()

    def _allowed(self, text: Text, places: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return which of `tokens` [m, k] the grammar allows, bool [m, k]; none where it gives
        up."""
        masks = np.zeros((len(places), self._words), dtype=np.uint32)
        answers = np.flatnonzero(np.diff(places, prepend=-2) != 1).tolist()  # where each begins
        for first, end in zip(answers, [*answers[1:], len(places)], strict=True):
            state = GrammarState(self._starts[text.number], self._eos_ids[0])
            state.fill(masks[first:end], text.ids[places[first : end - 1]].tolist())
            if state.gave_up_at is not None:
                masks[first + state.gave_up_at : end] = 0
        words = np.minimum(tokens // BITS, self._words - 1)
        bits = np.take_along_axis(masks, words, axis=1) >> (tokens % BITS).astype(np.uint32)
        known = tokens < self._words * BITS
        return np.asarray((bits & 1).astype(bool) & known)
