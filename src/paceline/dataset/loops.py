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
LOOP_TOKENS = REPEATS * MAX_PERIOD  # what the longest loop takes
NGRAM = 16  # tokens of a run that is a loop when it is said three times, whatever stands between
# Every loop says a run of so many tokens again, right behind the first: those of four, three times.
SHORTEST = 8
FACTORS = {1: np.uint64(0x9E3779B97F4A7C15), 2: np.uint64(0xBF58476D1CE4E5B9),
           4: np.uint64(0x94D049BB133111EB), 8: np.uint64(0xD6E8FEB86659FD93)}  # fmt: skip


def loop_start(token_ids: Sequence[int]) -> int | None:
    """Return the number of tokens before a text starts to loop, or None if it never does.

    A loop is a run of tokens that stands three times in a row, at least 12 tokens in all, or a run
    of 16 tokens that is said a third time anywhere. The first turn of a loop still counts as text.
    """
    ids = np.asarray(token_ids)
    starts = (_three_in_a_row(ids), _said_three_times(ids))
    return min((start for start in starts if start is not None), default=None)


def looping(tails: np.ndarray) -> np.ndarray:
    """Return which texts are in a loop at their end: the last tokens are a run that stands three
    times in a row, as above. `tails` int [texts, LOOP_TOKENS] are their last tokens; pad a shorter
    text on the left with negative numbers that all differ.

    It is for texts that are still growing: loop_start() finds the other kind of loop as well.
    """
    found = np.zeros(len(tails), bool)
    for period in range(1, MAX_PERIOD + 1):
        repeated = _repeated(period)
        # Most texts do not even end as they did one turn before.
        rows = np.flatnonzero((tails[:, -1] == tails[:, -1 - period]) & ~found)
        last, before = tails[rows, -repeated:], tails[rows, -repeated - period : -period]
        found[rows] = (last == before).all(1)
    return found


def _repeated(period: int) -> int:
    """Return how many tokens of a loop repeat the tokens a period before."""
    return (max(REPEATS, -(-MIN_TOKENS // period)) - 1) * period


def _three_in_a_row(ids: np.ndarray) -> int | None:
    """Find the loop that is complete first, and among several the one with the shortest turn."""
    most = min(MAX_PERIOD, len(ids) // REPEATS)
    if most < 1 or not _repeats(ids, SHORTEST, 2):
        return None
    periods = np.arange(1, most + 1)
    repeated = np.array([_repeated(period) for period in periods.tolist()])
    places = np.arange(len(ids))
    behind = np.minimum(places + periods[:, None], len(ids) - 1)
    same = (ids[behind] == ids) & (places < len(ids) - periods[:, None])
    # Of each period and place, how many of the `repeated` tokens from there on are said again.
    counts = np.pad(np.cumsum(same, 1), ((0, 0), (1, 0)))
    ends = np.minimum(places + repeated[:, None], len(ids))
    complete = np.take_along_axis(counts, ends, 1) - counts[:, :-1] == repeated[:, None]
    first = complete.argmax(1) + periods
    loops = [
        (int(first[i] + repeated[i]), int(periods[i]), int(first[i]))
        for i in np.flatnonzero(complete.any(1))
    ]
    return min(loops)[2] if loops else None


def _said_three_times(ids: np.ndarray) -> int | None:
    """Return the second place of the n-gram that is the first to come a third time."""
    if not _repeats(ids, NGRAM, REPEATS):
        return None
    token_ids = ids.tolist()
    places: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(token_ids) - NGRAM + 1):
        starts = places.setdefault(tuple(token_ids[start : start + NGRAM]), [])
        starts.append(start)
        if len(starts) == REPEATS:
            return starts[1]
    return None


def _repeats(ids: np.ndarray, size: int, times: int) -> bool:
    """Return False where no run of `size` ids, a power of two, is said so many times, as in most
    texts, which need no closer look then. True may be wrong: two runs can have one hash."""
    if len(ids) < size + times - 1:
        return False
    hashes, length = ids.astype(np.uint64), 1
    while length < size:  # the hash of a run is made of those of its halves
        hashes = hashes[:-length] * FACTORS[length] + hashes[length:]
        length *= 2
    hashes.sort()
    return bool((hashes[times - 1 :] == hashes[: 1 - times]).any())
