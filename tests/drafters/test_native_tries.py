"""Tries in native code draft as the one in Python does, and give their memory back."""

from __future__ import annotations

import random

import pytest

from paceline.drafters.context_trie import ContextTrie, make_trie
from paceline.kernels.build import runs_here
from paceline.kernels.tries import NativeTrie
from tests.drafters.test_context_trie import malloc_bytes, random_text

pytestmark = pytest.mark.skipif(not runs_here(), reason="the kernels cannot be built here")


def test_texts_that_come_and_go_draft_the_same_in_native_code() -> None:
    """To the bit, whatever was forgotten, with texts that lead in."""
    rng = random.Random(5)
    drafts = forgotten = 0
    for alphabet in (1, 2, 3, 12, 300):
        native, python = NativeTrie(6), ContextTrie(6)
        texts: list[tuple[int, int]] = []
        for _ in range(120):
            context, text = random_text(rng, alphabet, 9), random_text(rng, alphabet, 40)
            for trie in (native, python):
                trie.begin_text(context)
                trie.extend(text)
            texts.append((len(context), len(text)))
            while len(texts) > rng.randrange(1, 9):
                gone, forgotten = texts.pop(0), forgotten + 1
                native.forget(*gone)
                python.forget(*gone)
            assert len(native) == len(python)
            for _ in range(4):
                asked = random_text(rng, alphabet, 12), rng.randrange(9), rng.choice([0.0, 0.1])
                drafted = native.draft(*asked)
                assert drafted == python.draft(*asked)
                drafts += bool(drafted[0])
        for gone in texts:
            native.forget(*gone)
        assert len(native) == 0
        assert native.estimated_bytes == NativeTrie(6).estimated_bytes
    assert drafts > 1000 and forgotten > 300


def test_a_trie_gives_its_memory_back() -> None:
    def fill() -> None:
        for seed in range(20):
            rng = random.Random(seed)
            trie = NativeTrie(16)
            trie.begin_text()
            trie.extend([rng.randrange(500) for _ in range(20_000)])

    fill()
    before = malloc_bytes()
    fill()
    assert malloc_bytes() - before < 2_000_000, "a filled one takes three times that"


@pytest.mark.parametrize("alphabet", [1, 1000])
def test_memory_that_was_forgotten_is_free(alphabet: int) -> None:
    """One token over and over is one context with all the positions."""
    rng = random.Random(1)
    text = [rng.randrange(alphabet) for _ in range(100_000)]
    before = malloc_bytes()
    trie = NativeTrie(8)
    for end in range(1000, len(text) + 1, 1000):
        trie.begin_text()
        trie.extend(text[end - 1000 : end])
    for left in range(99, -1, -1):
        trie.forget(0, 1000)
        used = malloc_bytes() - before
        assert used < 3 * trie.estimated_bytes + 200_000, left  # tables never shrink
        assert trie.draft([0] * 9, 1, 0.0)[0] or not left or alphabet > 1


def test_look_ups_use_native_tries_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_trie(4), NativeTrie)
    monkeypatch.setattr("paceline.drafters.context_trie.runs_here", lambda: False)
    assert isinstance(make_trie(4), ContextTrie)
