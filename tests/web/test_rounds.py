"""The page's counts of rounds are those of Python, on the same rounds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from paceline.core import rounds as core_rounds

Open = Callable[..., Any]
Made = tuple[Any, dict[str, Any]]  # a round of the engine, and the same as the server writes it
COUNT = """async (streams) => {
    const { Counts } = await import("/web/lib/rounds.js");
    return streams.map((rounds) => {
        const counts = new Counts();
        for (const round of rounds) counts.add(round);
        return [counts.rounds, counts.draftRounds, counts.draftTokens, counts.acceptedTokens,
            counts.tokens, counts.acceptanceLength];
    });
}"""


def made_round(
    position: int, drafted: int, accepted: int, *, bonus: bool = True, forced: int = 0, cut: int = 0
) -> Made:
    """A round that drafted `drafted` tokens beside `forced` ones, and cut the last `cut`."""
    tokens = [{"id": index, "text": f"t{index}"} for index in range(drafted + forced + cut + 1)]
    verified = tokens[: drafted + forced]
    kinds = ["forced"] * forced + ["accepted"] * accepted + ["bonus"] * bonus
    committed = [*verified[: forced + accepted], *([tokens[-1]] if bonus else [])]
    counts = {"proposed": drafted + cut, "verified": drafted + forced, "forced": forced}
    round = core_rounds.Round(position, drafted, accepted, bonus=bonus, **counts)
    shown = {
        **counts,
        "time": 1.0 + position,
        "accepted": accepted,
        "drafted_tokens": tokens[forced : drafted + forced + cut],
        "verified_tokens": verified,
        "forced_places": list(range(forced)),
        "hidden_tokens": 0,
        "committed_tokens": [
            {**token, "kind": kind} for token, kind in zip(committed, kinds, strict=True)
        ],
    }
    return round, shown


def made_stream(seed: int) -> list[Made]:
    """Rounds with and without drafts, forced tokens, cut drafts, and an end inside a draft."""
    draw = random.Random(seed)
    stream = []
    for index in range(draw.randint(0, 12)):
        drafted = draw.choice([0, 0, 1, 3, 7])
        accepted = draw.randint(0, drafted)
        forced = draw.choice([0, 0, 2])
        bonus = draw.random() < 0.8 if accepted or forced else True
        cut = draw.choice([0, 0, 4])
        stream.append(made_round(index, drafted, accepted, bonus=bonus, forced=forced, cut=cut))
    return stream


def expected(stream: list[Made]) -> list[Any]:
    stats = core_rounds.SpeculationStats.of(round for round, _ in stream)
    return [
        stats.rounds,
        stats.draft_rounds,
        stats.draft_tokens,
        stats.accepted_tokens,
        stats.tokens,
        stats.acceptance_length,
    ]


def test_the_page_counts_rounds_as_python_does(url: str, open_page: Open) -> None:
    never_drafted = [made_round(0, 0, 0), made_round(1, 0, 0, bonus=False, forced=3)]
    streams = [[], never_drafted, *map(made_stream, range(200))]
    page = open_page(url + "/")
    counted = page.evaluate(COUNT, [[shown for _, shown in stream] for stream in streams])
    assert counted[0][-1] is None and counted[1][-1] is None
    assert counted == [pytest.approx(expected(stream)) for stream in streams]
