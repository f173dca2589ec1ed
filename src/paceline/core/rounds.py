"""Rounds of measured answers, as evaluations keep them, and what is told from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

AR = "ar"  # the side of an evaluation that runs without speculation
Row = Mapping[str, Any]  # one prompt of an evaluation, as its JSON has it


class Round(NamedTuple):
    """A target forward after the one that gave the first token.

    `position` is the index of the first output token that it committed, `drafted` how many draft
    tokens it verified, and `accepted` how many of them stand: it committed one token more. Where
    the text ends inside a draft, its last token is that one. What a grammar forced is in neither.
    """

    position: int
    drafted: int
    accepted: int


def counted_rounds(row: Row, side: str, *, tokens: int, block: int = 0) -> list[Round]:
    """The rounds that count: those that start before the text loops and, where `block` is given,
    with room for a whole block before the limit of `tokens`."""
    end = min(row["counted_tokens"], tokens - block)
    rounds = (Round(*each) for each in row["rounds"][side])
    return [each for each in rounds if each.position < end]


def ratio(above: Sequence[float], below: Sequence[float]) -> float | None:
    """Sum ÷ sum; None where there is nothing."""
    total = sum(below)
    return sum(above) / total if total else None


def tokens_per_round(rows: Sequence[Row], side: str, *, tokens: int) -> float | None:
    """Return the tokens that a counted round of `rows` committed, the bonus token included.

    Rounds without a draft count too. None where there is no round.
    """
    rounds = [round for row in rows for round in counted_rounds(row, side, tokens=tokens)]
    return ratio([1 + round.accepted for round in rounds], [1] * len(rounds))


def speedup_points(
    rows: Iterable[Row], side: str, *, tokens: int
) -> list[tuple[float, float, str]]:
    """(tokens per round, speedup over AR, prompt) of each request that was timed."""
    points = []
    for row in rows:
        if None in row["seconds"][AR]:
            continue
        per_round = tokens_per_round([row], side, tokens=tokens)
        speedup = ratio([sum(row["seconds"][AR])], [sum(row["seconds"][side])])
        if speedup is not None and per_round is not None:
            points.append((per_round, speedup, str(row["prompt"])))
    return points
