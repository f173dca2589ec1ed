"""Blocks are shared, evicted and given back without a leak, and never across scopes."""

from __future__ import annotations

import random

import pytest

from paceline.core import Request, SamplingParams
from paceline.engine.kv_cache import KVCache
from paceline.models.batch import BLOCK_SIZE


def request(name: str, tokens: list[int], salt: bytes = b"") -> Request:
    return Request(id=name, prompt_ids=tokens, params=SamplingParams(), salt=salt)


def compute(cache: KVCache, r: Request) -> int:
    """Admits and computes all tokens; returns how many came from the cache."""
    hit = cache.match_prefix(r)
    assert cache.allocate(r, len(r.tokens))
    r.computed = len(r.tokens)
    cache.commit(r)
    return hit


def test_equal_prefix_is_found_in_whole_blocks_and_leaves_the_last_token() -> None:
    cache = KVCache(16)
    tokens = list(range(BLOCK_SIZE * 2))
    first, second, third = (request(n, tokens) for n in "abc")
    third.tokens.append(5)
    compute(cache, first)
    assert compute(cache, second) == BLOCK_SIZE
    assert second.blocks[0] == first.blocks[0] and second.blocks[1] != first.blocks[1]
    assert compute(cache, third) == 2 * BLOCK_SIZE
    cache.check_integrity([first, second, third])


def test_prefix_outlives_its_request_until_memory_is_needed() -> None:
    cache = KVCache(4)
    tokens = list(range(BLOCK_SIZE * 2 + 1))
    compute(cache, a := request("a", tokens))
    cache.release(a)
    b, c = request("b", tokens), request("c", tokens)
    assert compute(cache, b) == 2 * BLOCK_SIZE
    cache.release(b)
    compute(cache, big := request("big", [9] * (BLOCK_SIZE * 4)))
    cache.release(big)
    assert compute(cache, c) == 0
    cache.check_integrity([c])


def test_scopes_do_not_see_each_other() -> None:
    cache = KVCache(16)
    tokens = list(range(BLOCK_SIZE * 3))
    compute(cache, request("a", tokens, b"alice"))
    assert compute(cache, request("b", tokens, b"bob")) == 0
    assert compute(cache, request("c", tokens, b"alice")) == 2 * BLOCK_SIZE


def test_same_block_after_another_beginning_is_another_block() -> None:
    cache = KVCache(16)
    tail = [7] * BLOCK_SIZE
    compute(cache, request("a", [1] * BLOCK_SIZE + tail + [0]))
    assert compute(cache, request("b", [2] * BLOCK_SIZE + tail + [0])) == 0


def test_only_verified_tokens_are_hashed() -> None:
    cache = KVCache(16)
    r = request("a", list(range(BLOCK_SIZE + 4)))
    cache.match_prefix(r)
    assert cache.allocate(r, 3 * BLOCK_SIZE)  # slots for drafts as well
    r.computed = BLOCK_SIZE - 1
    cache.commit(r)
    assert compute(cache, request("b", r.tokens)) == 0
    r.computed = BLOCK_SIZE
    cache.commit(r)
    assert compute(cache, request("c", r.tokens)) == BLOCK_SIZE


def test_draft_kv_is_remembered_by_drafter_and_forgotten_with_the_block() -> None:
    cache = KVCache(6)
    tokens = list(range(BLOCK_SIZE * 2 + 1))
    r = request("a", tokens)
    cache.match_prefix(r)
    cache.allocate(r, len(tokens))
    r.computed = len(tokens)
    cache.commit(r, ("small@1", BLOCK_SIZE + 3))
    hit = request("b", tokens)
    cache.match_prefix(hit)
    assert cache.held_draft_tokens(hit, "small@1") == BLOCK_SIZE
    assert cache.held_draft_tokens(hit, "small@2") == 0
    for held in (r, hit):
        cache.release(held)
    compute(cache, big := request("big", [9] * (BLOCK_SIZE * 6)))
    cache.release(big)
    compute(cache, again := request("c", tokens))
    assert cache.held_draft_tokens(again, "small@1") == 0


def test_allocation_that_does_not_fit_changes_nothing() -> None:
    cache = KVCache(4)
    r = request("a", [1])
    cache.match_prefix(r)
    assert not cache.allocate(r, 5 * BLOCK_SIZE)
    assert r.blocks == [] and cache.free_blocks == 4


def test_integrity_check_finds_a_leak_and_a_double_free() -> None:
    cache = KVCache(4)
    compute(cache, r := request("a", [1] * 20))
    with pytest.raises(AssertionError, match="references"):
        cache.check_integrity([])
    cache.check_integrity([r])
    lost = r.blocks.pop()
    with pytest.raises(AssertionError, match=f"block {lost}"):
        cache.check_integrity([r])


def test_random_life_never_leaks() -> None:
    rng = random.Random(3)
    cache, running = KVCache(24), []
    for step in range(2000):
        if running and rng.random() < 0.5:
            cache.release(running.pop(rng.randrange(len(running))))
        else:
            head = [rng.randrange(2)] * (BLOCK_SIZE * rng.randrange(3))
            r = request(str(step), head + [rng.randrange(4) for _ in range(rng.randrange(1, 30))])
            cache.match_prefix(r)
            if cache.allocate(r, len(r.tokens) + rng.randrange(8)):
                r.computed = rng.randrange(len(r.tokens) + 1)
                cache.commit(r)
                running.append(r)
            else:
                cache.release(r)
        cache.check_integrity(running)
    for r in running:
        cache.release(r)
    assert cache.free_blocks == cache.num_blocks
