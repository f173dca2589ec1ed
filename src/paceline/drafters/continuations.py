"""Drafts from counts of what followed each context in a text: the walk that every index shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

BOUNDARY = -1  # in the place of a token, at the start of a text: no context reaches across it
# Weight of "something else follows" after a match of one token. Chosen, with the power of match,
# by log-loss against what a model answered to code-editing and chat prompts.
DOUBT = 3.0


class Continuation(NamedTuple):
    """What followed a context: `token` in `times` of `total` cases.

    match    how many tokens before it agree with the text that is continued
    source   the position of the occurrence that is followed, where all agree; -1 where counts
             decide
    """

    token: int
    times: int
    total: int
    match: int
    source: int


class Continuing(Protocol):
    """An index of the contexts of texts, each at most `max_context` tokens long."""

    max_context: int

    def continuation(self, window: list[int], match: int, source: int) -> Continuation | None:
        """Return what followed the longest context that ends `window` and has a follower; of equals
        the one seen last. None where no context is known.

        `match` and `source` are those of the token before, which is the last one of `window`.
        """


def draft_from(
    index: Continuing, context: Sequence[int], length: int, floor: float
) -> tuple[list[int], list[float]]:
    """Return the most frequent continuation of `context`, up to `length` tokens, and estimates.

    Every token is the most frequent follower of the longest context (request and draft so far,
    at most max_context tokens) that has one; of equals the one seen last. Its estimate is
    count / (total + DOUBT / match²), where match is the number of tokens that agree: one
    occurrence after one matching token is worth 1/4, after eight 0.96. The draft ends where
    the product of the estimates falls below `floor`, or where no context is known.
    """
    window = list(context[-index.max_context :])
    tokens: list[int] = []
    estimates: list[float] = []
    survival, match, source = 1.0, 0, -1
    while len(tokens) < length:
        found = index.continuation(window, match, source)
        if found is None:
            break
        token, count, total, match, source = found
        estimate = count / (total + DOUBT / match**2)
        survival *= estimate
        if survival < floor:
            break
        tokens.append(token)
        estimates.append(estimate)
        window.append(token)
    return tokens, estimates
