"""Where a text starts to go round in circles, against a search that tries everything."""

from __future__ import annotations

import random

import numpy as np
import pytest

from paceline.dataset.loops import (
    LOOP_TOKENS,
    MAX_PERIOD,
    MIN_TOKENS,
    NGRAM,
    REPEATS,
    loop_start,
    looping,
)


@pytest.mark.parametrize(
    ("ids", "start"),
    [
        ([*range(20)], None),
        ([7, 8, 9] * 2 + [1], None),
        ([5, 6, *([1, 2, 3, 4] * 4)], 6),  # a period of four: cut after its first turn
        ([5] * 11, None),
        ([5] * 12, 1),
        ([9, *([*range(30)] * 3), 1, 2], 31),
        ([*range(16), 50, *range(16), 51, 52, *range(16)], 17),  # with other words in between
        ([*range(16), 50, *range(16), 51, 52, *range(15)], None),
    ],
)
def test_a_text_is_cut_where_it_starts_to_loop(ids: list[int], start: int | None) -> None:
    assert loop_start(ids) == start


def searched(ids: list[int]) -> int | None:
    """The definition, tried at every place."""
    rows = [
        (end, period, end - turns * period + period)
        for period in range(1, MAX_PERIOD + 1)
        for turns in [max(REPEATS, -(-MIN_TOKENS // period))]
        for end in range(turns * period, len(ids) + 1)
        if ids[end - turns * period : end] == ids[end - turns * period :][:period] * turns
    ]
    grams = [tuple(ids[start : start + NGRAM]) for start in range(len(ids) - NGRAM + 1)]
    thirds = [start for start in range(len(grams)) if grams[:start].count(grams[start]) == 2]
    starts = [start for _, _, start in sorted(rows)[:1]]
    if thirds:
        starts.append([s for s in range(len(grams)) if grams[s] == grams[thirds[0]]][1])
    return min(starts, default=None)


def test_it_is_found_where_a_search_finds_it():
    draw, found = random.Random(0), 0
    for _ in range(400):
        words = draw.choice([1, 2, 3, 20])
        ids = [draw.randrange(words) for _ in range(draw.randrange(100))]
        if len(ids) > 2:
            at, length = draw.randrange(len(ids)), draw.randrange(1, MAX_PERIOD + 4)
            ids[at:at] = ids[at : at + length] * draw.randrange(5)
        found += loop_start(ids) is not None
        assert loop_start(ids) == searched(ids), ids
    assert 100 < found < 300


def ends_in_a_loop(ids: list[int]) -> bool:
    """The definition, of the last tokens alone."""
    return any(
        ids[-turns * period :] == ids[-period:] * turns
        for period in range(1, MAX_PERIOD + 1)
        for turns in [max(REPEATS, -(-MIN_TOKENS // period))]
        if turns * period <= len(ids)
    )


def test_a_growing_text_loops_where_its_last_tokens_do() -> None:
    draw, texts = random.Random(1), []
    for _ in range(400):
        ids = [draw.randrange(draw.choice([2, 20])) for _ in range(draw.randrange(1, 60))]
        turn = ids[-draw.randrange(1, MAX_PERIOD + 4) :]
        texts.append(ids + turn * draw.randrange(5) + turn[: draw.randrange(3)])
    tails = np.arange(-len(texts) * LOOP_TOKENS, 0).reshape(len(texts), LOOP_TOKENS)
    for row, ids in zip(tails, texts, strict=True):
        kept = ids[-LOOP_TOKENS:]
        row[LOOP_TOKENS - len(kept) :] = kept
    expected = [ends_in_a_loop(ids) for ids in texts]
    assert looping(tails).tolist() == expected
    assert 100 < sum(expected) < 300
