"""Indexes of the requests' own texts grow by a bounded number of tokens in a step."""

from __future__ import annotations

import random

import pytest

from paceline.core import Request, SamplingParams
from paceline.drafters.base import ObservedRows
from paceline.drafters.chain import look_up_drafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.own_text import MOST_OF_A_CHOICE, MOST_OF_A_REQUEST
from paceline.drafters.suffix import SuffixDrafter

DRAFTERS = pytest.mark.parametrize("kind", [SuffixDrafter, NgramDrafter])
LONG = 8000
TAIL = 8  # rows of the prompt that the prefix cache does not have


def choices_of(prompt: list[int], n: int, name: str = "r") -> list[Request]:
    params = SamplingParams(n=n)
    return [
        Request(id=f"{name}#{i}", prompt_ids=prompt, params=params, choice=i, max_draft_len=16)
        for i in range(n)
    ]


def prompt_of(length: int, seed: int = 1) -> list[int]:
    """A text that says again what it said at the beginning, and in the middle."""
    rng = random.Random(seed)
    text = [rng.randrange(5000) for _ in range(length - 20)]
    return text + text[length // 2 : length // 2 + 20]


def indexed(drafter: SuffixDrafter | NgramDrafter, requests: list[Request]) -> int:
    return sum(drafter.state(request).indexed for request in requests)


@DRAFTERS
@pytest.mark.parametrize("n", [1, 4, 64, 128])
def test_no_step_pays_for_a_long_cached_prompt(kind, n):
    drafter, requests = kind(), choices_of(prompt_of(LONG), n)
    drafter.begin(requests, [0] * n)
    before = indexed(drafter, requests)
    drafter.observe([ObservedRows(request, LONG - TAIL, TAIL) for request in requests])
    assert indexed(drafter, requests) - before <= n * TAIL
    for request in requests:
        request.tokens.append(7)
    steps = 0
    while (before := indexed(drafter, requests)) < n * (LONG + 1):
        drafter.propose(requests, [8] * n)
        more = indexed(drafter, requests) - before
        assert 0 < more <= min(MOST_OF_A_REQUEST, n * MOST_OF_A_CHOICE)
        steps += 1
    assert steps <= 2 + LONG / min(MOST_OF_A_CHOICE, MOST_OF_A_REQUEST // n)


@DRAFTERS
def test_a_text_that_was_not_shown_is_soon_drafted_from_like_one_that_was(kind, draft_once):
    drafter = kind()
    (shown,), (cached,) = choices_of(prompt_of(LONG), 1, "s"), choices_of(prompt_of(LONG), 1, "c")
    drafter.begin([shown, cached], [0, 0])
    for start in range(0, LONG, 512):
        drafter.observe([ObservedRows(shown, start, min(512, LONG - start))])
    drafter.observe([ObservedRows(cached, LONG - TAIL, TAIL)])
    wanted = draft_once(drafter, shown)
    assert wanted
    drafts = [draft_once(drafter, cached) for _ in range(8)]
    assert drafts[0] != wanted and drafts[-1] == wanted


@DRAFTERS
def test_text_of_steps_without_drafts_is_caught_up_with(kind):
    drafter, (request,) = kind(), choices_of(prompt_of(100), 1)
    drafter.begin([request], [0])
    drafter.observe([ObservedRows(request, 0, 100)])
    request.tokens += prompt_of(3000, seed=2)
    for _ in range(3):
        before = indexed(drafter, [request])
        drafter.propose([request], [8])
        assert indexed(drafter, [request]) - before <= MOST_OF_A_CHOICE
    assert indexed(drafter, [request]) == 3100


def test_drafts_of_unshown_text_do_not_depend_on_batch_mates():
    prompt, many = prompt_of(LONG), 30
    alone, together = look_up_drafter("alone", {}), look_up_drafter("together", {})
    (first,), (second,) = choices_of(prompt, 1, "a"), choices_of(prompt, 1, "b")
    mates = [choices_of(prompt_of(3000, seed), 1, f"m{seed}")[0] for seed in range(many)]
    alone.begin([first], [0])
    together.begin([*mates, second], [0] * (many + 1))
    drafts = []
    for _ in range(9):
        drafts.append(alone.propose([first], [8]).tokens[0])
        assert together.propose([*mates, second], [8] * (many + 1)).tokens[-1] == drafts[-1]
    assert len(drafts[-1]) > len(drafts[0])
