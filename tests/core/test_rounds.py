"""The fold of rounds: what its counts and rates are, and that parts and differences add up."""

from __future__ import annotations

import random

import pytest

from paceline.core import Round, SpeculationStats
from paceline.core.rounds import AR, speedup_points, tokens_per_round


def some_rounds(count: int, seed: int = 1) -> list[Round]:
    rng = random.Random(seed)
    rounds = []
    for position in range(count):
        drafted = rng.choice([0, 0, 3, 5, 8])
        accepted = rng.randint(0, drafted)
        bonus, part = rng.random() < 0.9, rng.choice(["suffix", "ngram"]) if drafted else None
        rounds.append(
            Round(
                position,
                drafted,
                accepted,
                bonus=bonus,
                forced=rng.choice([0, 0, 2]),
                part=part,
                seconds=0.25,
                ar_seconds=0.5,
                distance=0.125,
                replaced=rng.choice([0, 1]),
            )
        )
    return rounds


def test_nothing_drafted_has_no_acceptance() -> None:
    for stats in (SpeculationStats(), SpeculationStats.of([Round(0, 0, 0), Round(1, 0, 0)])):
        assert stats.acceptance_length is None and stats.acceptance_rate is None
        assert stats.by_position() == [] and stats.draft_rounds == 0
    assert SpeculationStats().tokens_per_round is None
    assert SpeculationStats().speedup_vs_ar is None and SpeculationStats().draft_length is None
    plain = SpeculationStats.of([Round(0, 0, 0), Round(1, 0, 0)])
    assert (plain.rounds, plain.tokens, plain.tokens_per_round) == (2, 2, 1.0)


def test_counts_and_rates_are_those_of_the_rounds() -> None:
    rounds = some_rounds(200)
    stats, drafted = SpeculationStats.of(rounds), [round for round in rounds if round.drafted]
    assert stats.rounds == 200 and stats.draft_rounds == len(drafted)
    assert stats.draft_tokens == sum(round.drafted for round in rounds)
    assert stats.accepted_tokens == sum(round.accepted for round in rounds)
    assert stats.tokens == sum(round.tokens for round in rounds)
    assert stats.forced_tokens == sum(round.forced for round in rounds)
    assert stats.acceptance_length == 1 + stats.accepted_tokens / len(drafted)
    assert stats.tokens_per_round == 1 + stats.accepted_tokens / 200
    assert stats.acceptance_rate == stats.accepted_tokens / stats.draft_tokens
    assert stats.speedup_vs_ar == 2 and stats.distance == 25
    for position, counts in enumerate(stats.by_position()):
        reached = sum(round.drafted > position for round in rounds)
        assert counts == (reached, sum(round.accepted > position for round in rounds))


def test_parts_add_up_to_the_drafted_rounds() -> None:
    stats = SpeculationStats.of(some_rounds(100))
    assert set(stats.parts) == {"suffix", "ngram"}
    for name in ("draft_rounds", "draft_tokens", "accepted_tokens"):
        assert sum(getattr(part, name) for part in stats.parts.values()) == getattr(stats, name)


def test_a_copy_stays_and_the_difference_is_what_came_since() -> None:
    first, later = some_rounds(60), some_rounds(40, seed=2)
    stats = SpeculationStats.of(first)
    before = stats.copy()
    for round in later:
        stats.add(round)
    assert before == SpeculationStats.of(first)
    since, alone = stats - before, SpeculationStats.of(later)
    assert since.acceptance_length == pytest.approx(alone.acceptance_length)
    assert since.by_position() == alone.by_position() and since.tokens == alone.tokens
    assert (before + alone).rounds_by_draft_length == stats.rounds_by_draft_length
    assert (before + alone).parts == stats.parts


def test_what_lies_behind_the_end_of_a_text_is_not_judged() -> None:
    """The text ended with the third of five draft tokens: two stand, and the third is the bonus."""
    ended = Round(7, 5, 3, bonus=False)
    judged = ended.judged()
    assert (judged.drafted, judged.accepted, judged.tokens) == (2, 2, 3) == (2, 2, ended.tokens)
    assert SpeculationStats.of([judged]).acceptance_length == 3
    first = Round(7, 5, 1, bonus=False).judged()
    assert (first.drafted, first.accepted, first.tokens) == (0, 0, 1)
    whole = Round(7, 5, 3)
    assert whole.judged() is whole


def test_rows_of_an_evaluation_are_read_with_the_same_fold() -> None:
    row = {
        "prompt": "p",
        "counted_tokens": 20,
        "rounds": {"ngram": [[1, 4, 4], [6, 0, 0], [7, 4, 1], [25, 4, 4]]},
        "seconds": {AR: [2.0], "ngram": [1.0]},
    }
    per_round = tokens_per_round([row], "ngram", tokens=30)
    assert per_round == pytest.approx((5 + 1 + 2) / 3), "the round behind the loop does not count"
    assert speedup_points([row], "ngram", tokens=30) == [(per_round, 2.0, "p")]
    assert tokens_per_round([], "ngram", tokens=30) is None
