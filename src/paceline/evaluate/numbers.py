"""The numbers of rows: acceptance length, by position and by context, and speed beside AR.

A number over several requests is a ratio of sums (pooled); its interval is the 95% bootstrap over
requests, because the rounds of one answer hang together.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.turns import pooled_interval
from paceline.core.rounds import (
    AR,
    Round,
    SpeculationStats,
    counted_rounds,
    ratio,
    tokens_per_round,
)
from paceline.evaluate.result import (
    FULL,
    TIMED,
    AcceptanceNumbers,
    ContextBin,
    PositionShare,
    RequestRow,
    SetNumbers,
    SpeedNumbers,
)

FIRST_EDGE = 128  # contexts: below 128 tokens, then doubling


def set_numbers(rows: Sequence[RequestRow], blocks: dict[str, int], tokens: int) -> SetNumbers:
    """Return all numbers of a set's rows. `blocks` holds the longest draft of each drafter; speed
    is that of the sides that were timed beside AR."""
    texts = [same for row in rows for same in row["same_text"].values()]
    timed = {side for row in rows if AR in row["seconds"] for side in row["seconds"]}
    return SetNumbers(
        requests=len(rows),
        looping=sum(row["counted_tokens"] < row["output_tokens"] for row in rows),
        output_tokens=sum(row["output_tokens"] for row in rows),
        counted_tokens=sum(row["counted_tokens"] for row in rows),
        forced_tokens=sum(row.get("forced_tokens", 0) for row in rows),
        bound=sum(row.get("grammar_sha256") is not None for row in rows),
        same_text=all(texts) if texts else None,
        acceptance={
            name: acceptance(rows, f"{name}/{FULL}", tokens=tokens, block=block)
            for name, block in blocks.items()
        },
        speed={
            side: speed(rows, side, tokens=tokens) for side in TIMED if side in timed and side != AR
        },
    )


def acceptance(
    rows: Sequence[RequestRow], side: str, *, tokens: int, block: int
) -> AcceptanceNumbers:
    """Return the acceptance of one side over rounds that have room for a whole block.

    `al` is the mean over all rounds, `al_mean_of_requests` the mean of each request's AL. A round
    in which there was nothing to draft with counts as one that accepted nothing.
    """
    counted = [counted_rounds(row, side, tokens=tokens, block=block) for row in rows]
    by_request = [SpeculationStats.of(rounds) for rounds in counted if rounds]
    sizes = [stats.rounds for stats in by_request]
    committed = [stats.rounds + stats.accepted_tokens for stats in by_request]
    rounds = [round for request in counted for round in request]
    total = SpeculationStats.of(rounds)
    return AcceptanceNumbers(
        requests=len(by_request),
        rounds=len(rounds),
        drafted_rounds=total.draft_rounds,
        al=total.tokens_per_round,
        al_interval=pooled_interval(committed, sizes),
        al_mean_of_requests=ratio(
            [stats.tokens_per_round or 0.0 for stats in by_request], [1] * len(by_request)
        ),
        positions=[_position(rounds, k) for k in range(1, block + 1)],
        contexts=contexts(rows, side, tokens=tokens, block=block),
    )


def _position(rounds: Sequence[Round], k: int) -> PositionShare:
    """Return the share of rounds that accepted at least k tokens: of all rounds, and of those that
    came to draft position k (k - 1 accepted and a k-th drafted)."""
    accepted = sum(round.accepted >= k for round in rounds)
    reached = sum(round.accepted >= k - 1 and round.drafted >= k for round in rounds)
    return PositionShare(
        position=k,
        accepted=accepted,
        reached=reached,
        share=ratio([accepted], [len(rounds)]),
        conditional=ratio([accepted], [reached]),
    )


def contexts(rows: Sequence[RequestRow], side: str, *, tokens: int, block: int) -> list[ContextBin]:
    """Return AL by the number of tokens before the anchor, in the bins that occur."""
    bins: dict[int, list[int]] = {}
    for row in rows:
        for round in counted_rounds(row, side, tokens=tokens, block=block):
            before = row["prompt_tokens"] + round.position - 1
            bins.setdefault(context_bin(before), []).append(round.accepted)
    found = []
    for start, accepted in sorted(bins.items()):
        al, end = 1 + sum(accepted) / len(accepted), 2 * start or FIRST_EDGE
        found.append(ContextBin.read({"from": start, "to": end, "rounds": len(accepted), "al": al}))
    return found


def context_bin(before: int) -> int:
    """Return the lower edge of the bin: 0, 128, 256, 512, …"""
    return 0 if before < FIRST_EDGE else 1 << (before.bit_length() - 1)


def speed(rows: Sequence[RequestRow], side: str, *, tokens: int) -> SpeedNumbers:
    """Return the speedup of a side over AR: AR's seconds ÷ the side's, over the counted tokens of
    all requests without the first of each. `tokens_per_round` is what the speedup would be if
    drafts cost nothing."""
    timed = [row for row in rows if _is_timed(row, AR) and _is_timed(row, side)]
    plain, drafted = (
        [sum(second or 0.0 for second in row["seconds"][s]) for row in timed] for s in (AR, side)
    )
    per_round = tokens_per_round(timed, side, tokens=tokens)
    speedup = ratio(plain, drafted)
    counted = [
        len(row["seconds"][AR]) * (row.get("timed_tokens", row["counted_tokens"]) - 1)
        for row in timed
    ]
    return SpeedNumbers(
        requests=len(timed),
        speedup=speedup,
        speedup_interval=pooled_interval(plain, drafted),
        tokens_per_round=per_round,
        speedup_per_token=None if speedup is None or per_round is None else speedup / per_round,
        tpot_ms=ratio([1e3 * second for second in drafted], counted),
        ar_tpot_ms=ratio([1e3 * second for second in plain], counted),
    )


def _is_timed(row: RequestRow, side: str) -> bool:
    return None not in row["seconds"].get(side, [None])
