"""The grammar that bound an answer, along it: of the larger model's distribution only what it
allowed may be learnt.

Alone the larger model might begin with a sentence, or with a fence of Markdown. The application
never sees that, and a student that learnt it would leave the grammar more often than before.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from llguidance import LLMatcher

from paceline.core import Grammar
from paceline.engine.grammar import Compiler
from paceline.training.packs import Text


class Bounds:
    """Grammars by the numbers of the texts whose answers they bound.

    The constructor raises InvalidRequest for a grammar that does not compile.
    """

    def __init__(self, compiler: Compiler, grammars: Mapping[int, Grammar]) -> None:
        self._starts = {number: compiler.compile(each) for number, each in grammars.items()}
        compiler.close()

    def bind(
        self, text: Text, places: torch.Tensor, tokens: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """Return the probabilities of likely `tokens` int [m, k] at `places` int64 [m] of a text
        under its grammar: those that it rules out have none, and the others are scaled to 1, or all
        are 0 where it rules out all. Without a grammar `shares` float16 [m, k] stay."""
        start = self._starts.get(text.number)
        if start is None:
            return shares
        allowed = torch.from_numpy(_allowed(start, text, places, tokens.numpy()))
        left = shares.float() * allowed
        return (left / left.sum(-1, keepdim=True).clamp(min=1e-30)).half()


def _allowed(start: LLMatcher, text: Text, places: torch.Tensor, tokens: np.ndarray) -> np.ndarray:
    """Return which of `tokens` [m, k] a grammar allows at `places` [m] of a text, bool [m, k]."""
    matcher, last = start, -1
    allowed = np.zeros(tokens.shape, dtype=bool)
    for row, place in enumerate(places.tolist()):
        if place != last + 1:  # another answer begins
            matcher = start.deep_copy()
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        known = tokens[row] >> 3 < len(bits)
        of_known = tokens[row][known]
        allowed[row, known] = bits[of_known >> 3] >> (of_known & 7) & 1
        matcher.consume_token(int(text.ids[place]))
        last = place
    return allowed
