from __future__ import annotations

import random

import pytest

from paceline.core import InvalidRequest
from paceline.drafters.base import ObservedRows
from paceline.drafters.ngram import NgramDrafter, NgramIndex


def brute_force(tokens: list[int], length: int, low: int, high: int) -> list[int]:
    """Prompt lookup by scanning: longest n first, then the most recent occurrence."""
    for n in range(min(high, len(tokens) - 1), low - 1, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[-n:]:
                text = list(tokens)
                for index in range(length):
                    text.append(text[start + n + index])
                return text[len(tokens) :]
    return []


@pytest.mark.parametrize("alphabet", [2, 4, 30])
@pytest.mark.parametrize("bounds", [(1, 1), (1, 4), (2, 5), (3, 3)])
def test_equals_a_scan_of_the_whole_text(alphabet, bounds, make_request, draft_once):
    rng = random.Random(alphabet)
    drafter = NgramDrafter(min_ngram=bounds[0], max_ngram=bounds[1])
    for _ in range(20):
        prompt = [rng.randrange(alphabet) for _ in range(rng.randrange(1, 40))]
        request = make_request(prompt)
        drafter.begin([request], [0])
        for _ in range(12):
            assert draft_once(drafter, request, 7) == brute_force(request.tokens, 7, *bounds)
            request.tokens += [rng.randrange(alphabet) for _ in range(rng.randrange(1, 4))]


def test_periodic_text_goes_on(make_request, draft_once):
    drafter = NgramDrafter()
    request = make_request([1, 2, 3, 1, 2, 3])
    drafter.begin([request], [0])
    assert draft_once(drafter, request, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_observing_in_chunks_changes_nothing(make_request, draft_once):
    rng = random.Random(1)
    prompt = [rng.randrange(5) for _ in range(200)]
    one, other = make_request(prompt), make_request(prompt)
    drafter = NgramDrafter()
    drafter.begin([one, other], [0, 0])
    for start in range(0, 192, 32):
        drafter.observe([ObservedRows(one, start, 32)])
    assert draft_once(drafter, one) == draft_once(drafter, other) != []


def test_work_per_step_does_not_grow_with_the_text(make_request, monkeypatch):
    """Counts n-grams entered rather than time: each token is entered once."""
    drafter = NgramDrafter()
    request = make_request(list(range(3000)))
    drafter.begin([request], [0])
    drafter.observe([ObservedRows(request, 0, 3000)])
    drafter.propose([request], [8])
    read = []

    class Watched(list):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    request.tokens = Watched([*request.tokens, 7, 8])
    drafter.propose([request], [8])
    assert len(read) < 40


def test_ngram_that_ends_the_text_finds_earlier_ones_only():
    index = NgramIndex(2, 4)
    index.extend([1, 2], 2)
    assert index.find([1, 2]) is None
    index.extend([1, 2, 9, 1, 2], 5)
    assert index.find([1, 2, 9, 1, 2]) == 2


def test_length_bounds_and_requests_that_never_draft(make_request, draft_once):
    drafter = NgramDrafter(max_draft_len=3)
    request, silent = make_request([1, 2] * 5), make_request([1, 2] * 5, max_draft_len=0)
    drafter.begin([request, silent], [0, 0])
    assert drafter.propose([request, silent], [9, 9]).lengths == [3, 0]
    assert draft_once(drafter, request, 0) == []


def test_release_forgets(make_request, draft_once):
    drafter = NgramDrafter()
    request = make_request([1, 2] * 5)
    drafter.begin([request], [0])
    drafter.release([request])
    assert draft_once(drafter, request) == []
    drafter.begin([request], [0])  # resumed after preemption
    assert draft_once(drafter, request, 4) == [1, 2, 1, 2]


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(InvalidRequest, match="min_ngram: got 6; expected at most max_ngram"):
        NgramDrafter(min_ngram=6, max_ngram=3)
