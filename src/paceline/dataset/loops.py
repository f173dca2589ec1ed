"""Loops: the place where a text starts to repeat itself.

Small models repeat themselves at low temperatures. Drafters guess a loop for free, so the text
after its first turn says nothing about real text: it is neither learnt nor counted in evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

REPEATS = 3
MIN_TOKENS = 12  # shorter repeats ("- - -", a table's rule) are ordinary text
MAX_PERIOD = 64
NGRAM = 16  # tokens of a run that is a loop when it is said three times, whatever stands between


def loop_start(token_ids: Sequence[int]) -> int | None:
    """Return the number of tokens before a text starts to loop, or None if it never does.

    A loop is a run of tokens that stands three times in a row, at least 12 tokens in all, or a run
    of 16 tokens that is said a third time anywhere. The first turn of a loop still counts as text.
    """
    starts = (_three_in_a_row(np.asarray(token_ids)), _said_three_times(token_ids))
    return min((start for start in starts if start is not None), default=None)


def _three_in_a_row(ids: np.ndarray) -> int | None:
    """Find the loop that is complete first, and among several the one with the shortest turn."""
    loops: list[tuple[int, int, int]] = []
    for period in range(1, min(MAX_PERIOD, len(ids) // REPEATS) + 1):
        repeated = (max(REPEATS, -(-MIN_TOKENS // period)) - 1) * period
        same = np.concatenate([[0], np.cumsum(ids[period:] == ids[:-period])])
        complete = np.flatnonzero(same[repeated:] - same[:-repeated] == repeated)
        if len(complete):
            start = int(complete[0]) + period
            loops.append((start + repeated, period, start))
    return min(loops)[2] if loops else None


def _said_three_times(token_ids: Sequence[int]) -> int | None:
    """Return the second place of the n-gram that is the first to come a third time."""
    places: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(token_ids) - NGRAM + 1):
        starts = places.setdefault(tuple(token_ids[start : start + NGRAM]), [])
        starts.append(start)
        if len(starts) == REPEATS:
            return starts[1]
    return None
