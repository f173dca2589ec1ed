"""Where a text starts to go round in circles.

Small models do at low temperatures. Drafters guess a loop for free, so what follows its first turn
says nothing about real text: it is neither counted where drafters are judged nor learnt from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

REPEATS = 3
MIN_TOKENS = 12  # shorter repeats ("- - -", a table's rule) are ordinary text
MAX_PERIOD = 64
NGRAM = 16  # a run so long that is said again and again is a loop, whatever stands between


def loop_start(token_ids: Sequence[int]) -> int | None:
    """Number of tokens before a text starts to loop, or None if it never does.

    A loop is a run of tokens that stands three times in a row, at least 12 tokens in all, or a run
    of 16 that is said a third time, wherever. Its first turn still counts as text.
    """
    starts = (_three_in_a_row(np.asarray(token_ids)), _said_three_times(token_ids))
    return min((start for start in starts if start is not None), default=None)


def _three_in_a_row(ids: np.ndarray) -> int | None:
    """Of the loop that is the first to be whole, and of those the one with the shortest turn."""
    found: list[tuple[int, int, int]] = []
    for period in range(1, min(MAX_PERIOD, len(ids) // REPEATS) + 1):
        again = (max(REPEATS, -(-MIN_TOKENS // period)) - 1) * period
        same = np.concatenate([[0], np.cumsum(ids[period:] == ids[:-period])])
        whole = np.flatnonzero(same[again:] - same[:-again] == again)
        if len(whole):
            start = int(whole[0]) + period
            found.append((start + again, period, start))
    return min(found)[2] if found else None


def _said_three_times(token_ids: Sequence[int]) -> int | None:
    """Where the second turn starts of the n-gram that is the first to come a third time."""
    places: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(token_ids) - NGRAM + 1):
        found = places.setdefault(tuple(token_ids[start : start + NGRAM]), [])
        found.append(start)
        if len(found) == REPEATS:
            return found[1]
    return None
