from __future__ import annotations

import random

import pytest

from paceline.core import FinishReason
from paceline.drafters.base import ObservedRows
from paceline.drafters.chain import ChainDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.suffix import ResponseCache, SuffixDrafter


def finish(drafter, request, reason=FinishReason.STOP):
    request.finish_reason = reason
    drafter.release([request])


def run(drafter, request, reason=FinishReason.STOP):
    """A request's whole life: it enters, drafts once, ends."""
    drafter.begin([request], [0])
    drafter.propose([request], [4])
    finish(drafter, request, reason)


def test_most_frequent_continuation_wins_over_the_latest(make_request, draft_once):
    drafter = SuffixDrafter()
    request = make_request([1, 2, 7, 0, 1, 2, 7, 5, 1, 2, 8, 3, 1, 2])
    drafter.begin([request], [0])
    assert draft_once(drafter, request, 1) == [7]


def test_confidence_is_given_for_every_token(make_request):
    drafter = SuffixDrafter()
    request = make_request([1, 2, 3, 4, 5, 1, 2])
    drafter.begin([request], [0])
    batch = drafter.propose([request], [3])
    assert batch.tokens == [[3, 4, 5]]
    assert batch.confidence[0] == sorted(batch.confidence[0])
    assert all(0 < c < 1 for c in batch.confidence[0])


def test_past_responses_draft_for_later_requests(make_request, draft_once):
    drafter = SuffixDrafter()
    run(drafter, make_request([1, 2], [10, 11, 12, 13]))
    later = make_request([1, 2])
    drafter.begin([later], [0])
    assert draft_once(drafter, later, 4) == [10, 11, 12, 13]
    later.tokens += [10, 11]
    assert draft_once(drafter, later, 4) == [12, 13]


def test_prompts_are_not_shared_only_responses(make_request, draft_once):
    drafter = SuffixDrafter()
    run(drafter, make_request([1, 2, 3, 4], [50]))
    later = make_request([1, 2])
    drafter.begin([later], [0])
    assert draft_once(drafter, later) == []


def test_nobody_drafts_from_another_scope(make_request, draft_once):
    drafter = SuffixDrafter()
    run(drafter, make_request([1, 2], [10, 11, 12, 13], answers_scope=b"alice"))
    alice, bob = (
        make_request([1, 2], answers_scope=b"alice"),
        make_request([1, 2], answers_scope=b"bob"),
    )
    nobody = make_request([1, 2])
    drafter.begin([alice, bob, nobody], [0, 0, 0])
    batch = drafter.propose([alice, bob, nobody], [4, 4, 4])
    assert batch.tokens == [[10, 11, 12, 13], [], []]


def test_without_a_scope_nobody_shares(make_request, draft_once):
    drafter = SuffixDrafter()
    run(drafter, make_request([1, 2], [10, 11, 12, 13], answers_scope=None))
    assert len(drafter.cache) == 0
    run(drafter, make_request([1, 2], [10, 11, 12, 13]))
    alone = make_request([1, 2], answers_scope=None)
    drafter.begin([alone], [0])
    assert draft_once(drafter, alone) == []


def test_a_draft_says_whether_it_comes_from_others(make_request):
    drafter = ChainDrafter("auto", [SuffixDrafter(), NgramDrafter()])
    run(drafter.parts[0], make_request([1, 2, 3], [10, 11, 12, 13]))
    theirs, own, none = make_request([1, 2, 3]), make_request([7, 8, 9, 7, 8]), make_request([5])
    drafter.begin([theirs, own, none], [0, 0, 0])
    for asked in (drafter, drafter.parts[0]):
        batch = asked.propose([theirs, own, none], [4, 4, 4])
        assert batch.tokens[0] == [10, 11, 12, 13] and batch.tokens[1] and not batch.tokens[2]
        assert batch.from_others == [True, False, False]


def test_the_better_of_own_text_and_past_responses_is_taken(make_request, draft_once):
    drafter = SuffixDrafter()
    run(drafter, make_request([30, 31, 32], [33, 34, 35, 36]))
    # The response agrees on three tokens, the request's own text on one.
    request = make_request([32, 99, 98, 30, 31, 32])
    drafter.begin([request], [0])
    assert draft_once(drafter, request, 2) == [33, 34]
    # And the other way round.
    own = make_request([1, 30, 31, 32, 77, 78, 1, 30, 31, 32])
    drafter.begin([own], [0])
    assert draft_once(drafter, own, 2) == [77, 78]


def test_preempted_request_is_not_a_response_yet_and_can_resume(make_request, draft_once):
    drafter = SuffixDrafter()
    request = make_request([1, 2], [10, 11, 12])
    drafter.begin([request], [0])
    drafter.propose([request], [4])
    drafter.release([request])  # preempted: no finish reason
    assert len(drafter.cache) == 0
    drafter.begin([request], [0])
    request.tokens += [1, 2]
    assert draft_once(drafter, request, 3) == [10, 11, 12]
    finish(drafter, request, FinishReason.ABORT)
    assert len(drafter.cache) == 1


def test_drafts_do_not_depend_on_chunks_or_batch_mates(make_request):
    rng = random.Random(5)
    prompts = [[rng.randrange(6) for _ in range(100)] for _ in range(5)]
    alone = []
    for prompt in prompts:
        drafter, request = SuffixDrafter(), make_request(prompt)
        drafter.begin([request], [0])
        alone.append(drafter.propose([request], [8]).tokens[0])
    drafter, requests = SuffixDrafter(), [make_request(prompt) for prompt in prompts]
    drafter.begin(requests, [0] * 5)
    for start in range(0, 96, 32):
        drafter.observe([ObservedRows(request, start, 32) for request in requests])
    assert drafter.propose(requests, [8] * 5).tokens == alone


def test_request_that_never_drafts_costs_nothing(make_request):
    drafter = SuffixDrafter()
    request = make_request([1, 2] * 50, [1, 2], max_draft_len=0)
    drafter.begin([request], [0])
    drafter.observe([ObservedRows(request, 0, 100)])
    assert drafter.propose([request], [8]).tokens == [[]]
    finish(drafter, request)
    assert len(drafter.cache) == 0


@pytest.mark.parametrize("alphabet", [3, 3000])
def test_memory_bound_holds_under_load_and_the_oldest_goes_first(alphabet):
    rng = random.Random(alphabet)
    cache = ResponseCache(max_bytes=200_000, max_context=16)
    for number in range(300):
        scope = b"%d" % rng.randrange(5)
        response = [rng.randrange(alphabet) for _ in range(rng.randrange(1, 200))]
        cache.store(scope, [number], response)
        assert cache.estimated_bytes <= 200_000
    assert 0 < len(cache) < 300
    cache.store(b"new", [1, 2], [70000, 70001])
    assert cache.trie(b"new").draft([1, 2], 2, 0.0)[0] == [70000, 70001]


def test_every_scope_is_given_back():
    cache = ResponseCache(max_bytes=20_000, max_context=8)
    for number in range(2000):
        cache.store(b"%d" % number, [1], [2, 3, 4])
    assert len(cache._tries) == len(cache) < 40


def test_cache_of_no_bytes_keeps_nothing():
    cache = ResponseCache(max_bytes=0, max_context=8)
    cache.store(b"", [1], [2, 3])
    assert cache.trie(b"") is None


def test_response_larger_than_the_cache_leaves_it_within_its_bound():
    cache = ResponseCache(max_bytes=5_000, max_context=8)
    cache.store(b"", [1], list(range(1000)))
    assert cache.estimated_bytes <= 5_000
    assert len(cache) == 0
