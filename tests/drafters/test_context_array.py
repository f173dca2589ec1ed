"""The arrays against the trie and against slow counting: the same tokens, the same counts."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from paceline.drafters import context_array
from paceline.drafters.context_array import SORTED, ContextArray, sorted_places
from paceline.drafters.context_trie import ContextTrie
from paceline.drafters.continuations import BOUNDARY, DOUBT
from tests.drafters.test_context_trie import brute_force, random_text

Texts = list[tuple[list[int], list[int], int]]  # context, answer, how often


def build(texts: Texts, max_context: int) -> ContextArray:
    tokens, counted, weights = [], [], []
    for context, answer, weight in texts:
        tokens += [BOUNDARY, *context, *answer]
        counted += range(len(tokens) - len(answer), len(tokens))
        weights += [weight] * len(answer)
    of_place = np.zeros(len(tokens), dtype=np.int32)
    of_place[counted] = weights
    array = np.array(tokens, dtype=np.int32)
    order = sorted_places(array, np.array(counted, dtype=np.int64))
    return ContextArray(array, order, of_place[order], max_context)


def trie_of(texts: Texts, max_context: int) -> ContextTrie:
    trie = ContextTrie(max_context)
    for context, answer, weight in texts:
        for _ in range(weight):
            trie.begin_text(context)
            trie.extend(answer)
    return trie


@pytest.mark.parametrize("alphabet", [2, 3, 8, 40])
@pytest.mark.parametrize("max_context", [1, 3, 6])
def test_drafts_are_those_of_exact_counts(alphabet, max_context):
    rng = random.Random(alphabet * 10 + max_context)
    drafted = 0
    for _ in range(25):
        texts = [random_text(rng, alphabet, 60) for _ in range(rng.randrange(1, 4))]
        index = build([([], text, 1) for text in texts], max_context)
        for _ in range(10):
            context = rng.choice(texts)[: rng.randrange(60)] + random_text(rng, alphabet, 3)
            tokens, estimates = index.draft(context, 6, floor=0.0)
            expected, shares = brute_force(texts, context, 6, max_context)
            assert tokens == expected
            drafted += len(tokens)
            for estimate, share in zip(estimates, shares, strict=True):
                assert share / 4 <= estimate < share
    assert drafted > 200


def alike_texts(rng: random.Random, alphabet: int, lead: int) -> Texts:
    """Answers of which most begin as another does, as those of an application."""
    texts: Texts = []
    for _ in range(12):
        answer = random_text(rng, alphabet, 20)
        if texts and rng.random() < 0.5:
            answer = rng.choice(texts)[1][:10] + answer
        texts.append((random_text(rng, alphabet, lead), answer, rng.randrange(1, 3)))
    return texts


def contexts_of(rng: random.Random, texts: Texts, alphabet: int) -> Iterator[list[int]]:
    for _ in range(300):
        lead, answer, _ = rng.choice(texts)
        whole = lead + answer
        yield whole[: rng.randrange(len(whole) + 1)] + random_text(rng, alphabet, 2)


@pytest.mark.parametrize("alphabet", [3, 12, 60])
def test_it_drafts_what_the_trie_drafts(alphabet):
    """Repeated answers count as often, lead-ins are no drafts, and what a walk leaves behind
    changes nothing."""
    rng = random.Random(alphabet)
    texts = alike_texts(rng, alphabet, lead=10)
    index, trie = build(texts, 16), trie_of(texts, 16)
    drafted = 0
    for context in contexts_of(rng, texts, alphabet):
        tokens = index.draft(context, 8, 0.0)[0]
        assert tokens == trie.draft(context, 8, 0.0)[0]
        drafted += len(tokens)
    assert drafted > 300


def slow_estimate(texts: Texts, context: list[int], token: int) -> float:
    """Return the confidence by its definition: the shares of the shortest context whose places
    agree, or the longest that there is, and the longest match among those places."""
    whole = [(answer, weight) for _, answer, weight in texts]
    places = [(t, i, w) for t, w in whole for i in range(len(t))]
    depth = 0
    while True:
        longer = [
            (t, i, w)
            for t, i, w in places
            if i > depth and depth < len(context) and t[i - 1 - depth] == context[-1 - depth]
        ]
        if not longer:
            break
        places, depth = longer, depth + 1
        if len({t[i] for t, i, _ in places}) == 1:
            break
    match = depth
    if len({t[i] for t, i, _ in places}) == 1:
        for t, i, _ in places:
            length = 0
            while length < min(i, len(context)) and t[i - 1 - length] == context[-1 - length]:
                length += 1
            match = max(match, length)
    count = sum(w for t, i, w in places if t[i] == token)
    return count / (sum(w for _, _, w in places) + DOUBT / match**2)


@pytest.mark.parametrize("alphabet", [3, 12, 60])
def test_confidence_is_what_it_is_defined_to_be(alphabet):
    rng = random.Random(alphabet)
    texts = alike_texts(rng, alphabet, lead=1)
    texts = [([], answer, weight) for _, answer, weight in texts]
    index = build(texts, 32)
    for context in contexts_of(rng, texts, alphabet):
        tokens, estimates = index.draft(context, 8, 0.0)
        for place, (token, estimate) in enumerate(zip(tokens, estimates, strict=True)):
            before = context + tokens[:place]
            assert estimate == pytest.approx(slow_estimate(texts, before, token))


def test_confidence_is_the_tries_where_a_context_came_up_a_few_times():
    rng = random.Random(1)
    texts: Texts = [([rng.randrange(2000)], random_text(rng, 2000, 80), 1) for _ in range(8)]
    index, trie = build(texts, 24), trie_of(texts, 24)
    for lead, answer, _ in texts:
        for end in range(len(answer)):
            context = lead + answer[:end]
            tokens, estimates = index.draft(context, 8, 0.1)
            expected, confidence = trie.draft(context, 8, 0.1)
            assert tokens == expected and estimates == pytest.approx(confidence)


def test_what_follows_ends_with_its_text():
    index = build([([1, 2], [3, 4], 1), ([9, 9], [4, 5, 6], 1)], 16)
    assert index.draft([1, 2], 8, 0.0)[0] == [3, 4, 5, 6]  # by way of the second text's 4
    index = build([([1, 2], [3, 4], 1), ([4, 8], [5], 1)], 16)
    assert index.draft([1, 2], 8, 0.0)[0] == [3, 4]
    assert index.draft([8], 8, 0.0)[0] == [5]
    assert index.draft([77], 8, 0.0) == ([], [])
    assert index.draft([], 8, 0.0) == ([], [])


def test_nothing_is_drafted_from_nothing():
    assert build([], 16).draft([1, 2], 4, 0.0) == ([], [])


def test_longer_contexts_than_are_sorted_are_cut():
    index = build([([], list(range(200)), 1)], 256)
    assert index.max_context == SORTED
    assert index.draft(list(range(100)), 5, 0.1)[0] == [100, 101, 102, 103, 104]


def test_kept_nodes_stay_within_their_bound(monkeypatch):
    monkeypatch.setattr(context_array, "MOST_NODES", 50)
    rng = random.Random(0)
    texts: Texts = [([], random_text(rng, 5, 300), 1) for _ in range(10)]
    index, trie = build(texts, 16), trie_of(texts, 16)
    most = 0
    for _ in range(200):
        context = random_text(rng, 5, 30)
        assert index.draft(context, 4, 0.0)[0] == trie.draft(context, 4, 0.0)[0]
        most = max(most, index._nodes)
    assert 50 < most < 50 + 4 * 16 + 1, "a draft walks a few contexts beyond the bound"
    assert index._nodes < most
