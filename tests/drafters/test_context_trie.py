from __future__ import annotations

import ctypes
import gc
import random
import tracemalloc
from collections import Counter

import pytest

from paceline.drafters.context_trie import AnyTrie, ContextTrie
from paceline.kernels.build import runs_here
from paceline.kernels.tries import NativeTrie


@pytest.fixture(params=[ContextTrie, NativeTrie], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[AnyTrie]:
    """Every test is of both: the native trie, and the one in Python that specifies it."""
    if request.param is NativeTrie and not runs_here():
        pytest.skip("the kernels cannot be built here")
    monkeypatch.setattr("tests.drafters.test_context_trie.Trie", request.param)
    return request.param


Trie: type[AnyTrie] = ContextTrie


def followers(texts: list[list[int]], context: list[int]) -> list[int]:
    """Return the token that followed each occurrence of `context`, in order."""
    n = len(context)
    return [
        text[i + n] for text in texts for i in range(len(text) - n) if text[i : i + n] == context
    ]


def brute_force(
    texts: list[list[int]], context: list[int], length: int, max_context: int
) -> tuple[list[int], list[float]]:
    """Most frequent follower of the longest context that has one, token by token; its share."""
    text, shares = list(context), []
    for _ in range(length):
        for n in range(min(max_context, len(text)), 0, -1):
            seen = followers(texts, text[-n:])
            if seen:
                counts = Counter(seen)
                most = max(counts.values())
                last = {token: index for index, token in enumerate(seen)}
                best = max((t for t in counts if counts[t] == most), key=last.__getitem__)
                shares.append(most / len(seen))
                text.append(best)
                break
        else:
            break
    return text[len(context) :], shares


def build(texts: list[list[int]], max_context: int) -> AnyTrie:
    trie = Trie(max_context)
    for text in texts:
        trie.begin_text()
        trie.extend(text)
    return trie


def random_text(rng: random.Random, alphabet: int, longest: int) -> list[int]:
    return [rng.randrange(alphabet) for _ in range(rng.randrange(longest))]


@pytest.mark.parametrize("alphabet", [2, 3, 8, 40])
@pytest.mark.parametrize("max_context", [1, 3, 6])
def test_drafts_are_those_of_exact_counts(alphabet, max_context):
    rng = random.Random(alphabet * 10 + max_context)
    for _ in range(25):
        texts = [random_text(rng, alphabet, 60) for _ in range(rng.randrange(1, 4))]
        trie = build(texts, max_context)
        for _ in range(10):
            context = rng.choice(texts)[: rng.randrange(60)] + random_text(rng, alphabet, 3)
            tokens, estimates = trie.draft(context, 6, floor=0.0)
            expected, shares = brute_force(texts, context, 6, max_context)
            assert tokens == expected
            for estimate, share in zip(estimates, shares, strict=True):
                assert share / 4 <= estimate < share  # least: one occurrence, one token agrees


def test_estimate_grows_with_the_match_and_the_evidence():
    def first(texts, context):
        return build(texts, 16).draft(context, 1, 0.0)[1][0]

    assert first([[1, 2, 3]], [9, 2]) == pytest.approx(1 / 4)  # seen once, one token agrees
    assert first([[1, 2, 3]], [1, 2]) == pytest.approx(1 / 1.75)
    assert first([[1, 2, 3, 1, 2, 3]], [1, 2]) == pytest.approx(2 / 2.75)
    assert first([[1, 2, 3, 1, 2, 3, 1, 2, 4]], [1, 2]) == pytest.approx(2 / 3.75)


def test_draft_ends_where_it_is_unlikely_to_stand():
    trie = build([list(range(100))], 16)
    one, three, all_ = (trie.draft([50], 60, floor)[0] for floor in (0.2, 0.1, 0.0))
    # One matching token, then two, three …: the estimates are 1/4, 4/7, 9/12, 16/19 …
    assert one == [51]
    assert three == [51, 52, 53]
    assert all_ == list(range(51, 100))
    assert len(trie.draft(list(range(43, 51)), 60, 0.1)[0]) == 49


def test_period_is_continued_past_the_end():
    assert build([[1, 2, 3, 1, 2, 3]], 16).draft([1, 2, 3, 1, 2, 3], 7, 0.0)[0] == [
        1, 2, 3, 1, 2, 3, 1,
    ]  # fmt: skip


def test_contexts_do_not_reach_across_texts():
    trie = build([[1, 2, 3], [4, 5]], 16)
    assert trie.draft([3], 4, 0.0) == ([], [])


def test_context_tokens_lead_in_but_are_not_proposed():
    trie = Trie(8)
    trie.begin_text([1, 2, 3])
    trie.extend([4, 5])
    assert trie.draft([2, 3], 4, 0.0)[0] == [4, 5]
    assert trie.draft([1], 4, 0.0)[0] == []


@pytest.mark.parametrize("alphabet", [2, 5, 40])
def test_forgetting_leaves_exactly_the_counts_of_what_is_left(alphabet):
    rng = random.Random(alphabet)
    for _ in range(15):
        texts = [random_text(rng, alphabet, 50) for _ in range(6)]
        trie = build(texts, 5)
        for gone in range(1, 6):
            trie.forget(0, len(texts[gone - 1]))
            left = texts[gone:]
            for _ in range(10):
                context = random_text(rng, alphabet, 12)
                tokens, estimates = trie.draft(context, 1, 0.0)
                expected, shares = brute_force(left, context, 1, 5)
                assert len(tokens) == len(expected)
                if tokens:  # of equals, another may be best than before
                    seen = Counter(_longest_followers(left, context, 5))
                    assert seen[tokens[0]] == max(seen.values())
                    assert shares[0] / 4 <= estimates[0] < shares[0]
        trie.forget(0, len(texts[5]))
        assert len(trie) == 0
        assert trie.estimated_bytes == Trie(5).estimated_bytes


def _longest_followers(texts: list[list[int]], context: list[int], max_context: int) -> list[int]:
    return next(
        seen
        for n in range(min(max_context, len(context)), 0, -1)
        if (seen := followers(texts, context[-n:]))
    )


class Mallinfo(ctypes.Structure):
    """The result of mallinfo2(3): memory that glibc's malloc has allocated."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple(zip(names.split(), [ctypes.c_size_t] * 10, strict=True))


def malloc_bytes() -> int:
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
    found = mallinfo()
    return found.uordblks + found.hblkhd


@pytest.mark.parametrize("alphabet", [2, 50, 5000])
def test_estimated_size_is_near_the_truth(alphabet, kind):
    rng = random.Random(0)
    text = [1000 + rng.randrange(alphabet) for _ in range(5000)]
    tracemalloc.start()
    gc.collect()
    before = malloc_bytes() if kind is NativeTrie else 0
    trie = Trie(16)
    trie.begin_text()
    for token in text:
        trie.extend([int(str(token))])  # an int of its own, as tokens from a model are
    python = tracemalloc.get_traced_memory()[0]
    used = python if kind is ContextTrie else malloc_bytes() - before
    tracemalloc.stop()
    assert 0.6 < trie.estimated_bytes / used < 1.6


def test_one_run_of_equal_tokens_stays_cheap():
    trie = build([[7] * 20_000 + [8]], 16)
    assert trie.estimated_bytes < 8_000_000
    assert trie.draft([7] * 20, 5, 0.1)[0] == [7] * 5
