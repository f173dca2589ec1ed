"""Near-duplicates and overlap, beside their definitions."""

from __future__ import annotations

import random

from paceline.dataset.overlap import (
    NEAR,
    TextIndex,
    grams,
    prompt_grams,
    resemblance,
)


def test_an_ngram_counts_once_and_in_its_order() -> None:
    assert len(grams([1, 2, 1, 2, 1], 2)) == 2
    assert len(grams([1, 2, 3], 8)) == 1 and len(grams([], 3)) == 0
    assert set(grams([1, 2], 2).tolist()).isdisjoint(grams([2, 1], 2).tolist())
    assert grams([1, 2, 3], 2).tolist() == sorted(grams([1, 2, 3], 2).tolist())


def test_case_and_spacing_do_not_count_in_prompts() -> None:
    first, second = prompt_grams("Where  is my CUP?"), prompt_grams("where is my cup?")
    assert first.tolist() == second.tolist()
    assert resemblance(first, prompt_grams("where is my hat?")) == 1 / 5


def test_the_index_finds_what_comparing_all_pairs_finds() -> None:
    """Texts that share more and less of their n-grams, on both sides of NEAR."""
    draw = random.Random(0)
    texts = []
    for _ in range(40):
        base = [draw.randrange(50) for _ in range(draw.randrange(1, 40))]
        for _ in range(5):
            texts.append([token if draw.random() > 0.05 else 99 for token in base])
    found = [grams(text, 3) for text in texts]
    added, asked = found[::2], found[1::2]
    index = TextIndex()
    for text in added:
        index.add(text)
    plain = [any(resemblance(text, other) >= NEAR for other in added) for text in asked]
    assert [index.has_near(text) for text in asked] == plain
    assert 20 < sum(plain) < len(plain) - 10


def test_nothing_is_near_to_nothing() -> None:
    index = TextIndex()
    index.add(grams([], 3))
    assert not index.has_near(grams([], 3)) and not index.has_near(grams([1], 3))
