"""From rows to numbers: acceptance length, by position and by context, and speed against AR.

Every function takes rows as the JSON has them, so that a report can be made again from its file.
A number over several requests is a ratio of sums (pooled); its interval is the 95% bootstrap over
requests, for the rounds of one answer hang together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.core.rounds import AR, Round, Row, counted_rounds, ratio, tokens_per_round

DRAWS = 2000
FEWEST = 5  # requests that an interval needs
FIRST_EDGE = 128  # contexts: below 128 tokens, then doubling


def interval(above: Sequence[float], below: Sequence[float]) -> list[float] | None:
    """95% bootstrap interval of sum(above) ÷ sum(below), pairs drawn with replacement; always the
    same for the same numbers. None for fewer than FEWEST pairs, and where all of `below` is 0."""
    count = len(above)
    if count < FEWEST or not any(below):
        return None
    chosen = np.random.default_rng(0).integers(0, count, (DRAWS, count))
    sums = np.asarray(below, dtype=float)[chosen].sum(1)
    kept = sums > 0
    ratios = np.asarray(above, dtype=float)[chosen].sum(1)[kept] / sums[kept]
    return [float(edge) for edge in np.percentile(ratios, [2.5, 97.5])]


# -- acceptance ------------------------------------------------------------------------------------


def acceptance(rows: Sequence[Row], side: str, *, tokens: int, block: int) -> dict[str, Any]:
    """Acceptance length incl. bonus over rounds with a whole block of room.

    `al` is the mean over all rounds, `al_mean_of_requests` the mean of each request's own. A round
    in which there was nothing to draft with counts as one that accepted nothing.
    """
    by_request = [counted_rounds(row, side, tokens=tokens, block=block) for row in rows]
    by_request = [rounds for rounds in by_request if rounds]
    counts = [len(rounds) for rounds in by_request]
    committed = [sum(1 + each.accepted for each in rounds) for rounds in by_request]
    means = [c / n for c, n in zip(committed, counts, strict=True)]
    rounds = [each for request in by_request for each in request]
    return {
        "requests": len(by_request),
        "rounds": len(rounds),
        "drafted_rounds": sum(each.drafted > 0 for each in rounds),
        "al": ratio(committed, counts),
        "al_interval": interval(committed, counts),
        "al_mean_of_requests": sum(means) / len(means) if means else None,
        "positions": positions(rounds, block),
        "contexts": contexts(rows, side, tokens=tokens, block=block),
    }


def positions(rounds: Sequence[Round], block: int) -> list[dict[str, Any]]:
    """For each draft position k: the share of all rounds that accepted at least k tokens, and the
    share of those that came to it (k - 1 accepted and a k-th drafted)."""
    found = []
    for k in range(1, block + 1):
        accepted = sum(each.accepted >= k for each in rounds)
        reached = sum(each.accepted >= k - 1 and each.drafted >= k for each in rounds)
        found.append(
            {
                "position": k,
                "accepted": accepted,
                "reached": reached,
                "share": accepted / len(rounds) if rounds else None,
                "conditional": accepted / reached if reached else None,
            }
        )
    return found


def contexts(rows: Sequence[Row], side: str, *, tokens: int, block: int) -> list[dict[str, Any]]:
    """AL by the number of tokens before the anchor, in the bins that occur."""
    bins: dict[int, list[int]] = {}
    for row in rows:
        for each in counted_rounds(row, side, tokens=tokens, block=block):
            before = row["prompt_tokens"] + each.position - 1
            bins.setdefault(context_bin(before), []).append(1 + each.accepted)
    return [
        {
            "from": start,
            "to": 2 * start or FIRST_EDGE,
            "rounds": len(bins[start]),
            "al": sum(bins[start]) / len(bins[start]),
        }
        for start in sorted(bins)
    ]


def context_bin(before: int) -> int:
    """The lower edge of the bin: 0, 128, 256, 512, …"""
    return 0 if before < FIRST_EDGE else 1 << (before.bit_length() - 1)


# -- speed -----------------------------------------------------------------------------------------


def speed(rows: Sequence[Row], side: str, *, tokens: int) -> dict[str, Any]:
    """Speedup of a side over AR: AR's seconds ÷ its own over the counted tokens of all requests,
    the first token of each aside. `tokens_per_round` is what it would be if drafts cost nothing."""
    timed = [row for row in rows if None not in row["seconds"][AR]]
    plain = [sum(row["seconds"][AR]) for row in timed]
    own = [sum(row["seconds"][side]) for row in timed]
    per_round = tokens_per_round(timed, side, tokens=tokens)
    speedup = ratio(plain, own)
    said = [len(row["seconds"][AR]) * (row["counted_tokens"] - 1) for row in timed]
    return {
        "requests": len(timed),
        "speedup": speedup,
        "speedup_interval": interval(plain, own),
        "tokens_per_round": per_round,
        "speedup_per_token": None if speedup is None or per_round is None else speedup / per_round,
        "tpot_ms": _milliseconds(ratio(own, said)),
        "ar_tpot_ms": _milliseconds(ratio(plain, said)),
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
