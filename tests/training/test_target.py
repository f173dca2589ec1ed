"""The target reads several texts in one forward, with the bits of one text alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.models import networks
from paceline.models.any_target import TargetShape
from paceline.models.loader import load_model
from paceline.models.networks import build_network
from paceline.training import target as target_module
from paceline.training.packs import Text
from paceline.training.seen import Seen
from paceline.training.target import LocalTarget
from paceline.training.top_k import top_k
from tests.training.twins import random_text

TEXTS = [random_text(tokens, 5, 256, number) for number, tokens in enumerate((40, 7, 61, 16, 33))]


def tiny_target(target: Path, dtype: str, soft: int = 4, **options: Any) -> LocalTarget:
    loaded = load_model(str(target))
    network, _ = build_network(loaded, dtype=dtype, device=options.pop("device", "cpu"))
    return LocalTarget(network, TargetShape.of(loaded.config), (0, 2, 3), 0, soft, **options)


def alone(target: Path, dtype: str, text: Text, **options: Any) -> Seen:
    """Return what a target that has read nothing before shows of a text."""
    return tiny_target(target, dtype, **options).read(text)


def equal(one: Seen, other: Seen) -> bool:
    pairs = (
        (one.features, other.features),
        (one.likely, other.likely),
        (one.probabilities, other.probabilities),
    )
    return all(torch.equal(a, b) for a, b in pairs if a is not None and b is not None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_texts_in_one_forward_have_the_bits_of_each_alone(dtype, target, monkeypatch) -> None:
    """Forwards are so small here that texts begin and end within them."""
    monkeypatch.setattr(networks, "SEQUENCE_ROWS", 24)
    reader = tiny_target(target, dtype)
    together = reader.read_all(TEXTS)
    assert [len(seen.features) for seen in together] == [len(text) for text in TEXTS]
    for text, seen in zip(TEXTS, together, strict=True):
        assert equal(seen, alone(target, dtype, text))


def behind(start: torch.Tensor, tokens: int, number: int) -> Text:
    """A text of this start, with `tokens` of its own that are all said."""
    own = torch.from_numpy(np.random.default_rng(number).integers(0, 256, tokens))
    ids = torch.cat([start, own])
    said = torch.arange(len(ids)) >= len(start)
    return Text(number, ids, said)


START = random_text(50, 0, 256, 99).ids
ALIKE = [
    behind(START, 9, 0),
    random_text(20, 5, 256, 1),
    behind(START, 30, 2),
    behind(torch.cat([START, random_text(40, 0, 256, 98).ids]), 5, 3),
    behind(START[:33], 12, 4),
    behind(torch.cat([START, random_text(40, 0, 256, 98).ids]), 25, 5),
]


@pytest.mark.parametrize("rows", [24, 512])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_start_that_texts_share_is_computed_once_with_the_same_bits(
    dtype, rows, target, monkeypatch
) -> None:
    monkeypatch.setattr(networks, "SEQUENCE_ROWS", rows)
    reader = tiny_target(target, dtype)
    together = reader.read_all(ALIKE)
    # Whole blocks of 16: 48 of the start of 50, twice; 32 of 33; and 80 of the longer one.
    assert reader.computed_tokens == sum(map(len, ALIKE)) - 48 - 48 - 32 - 80
    for text, seen in zip(ALIKE, together, strict=True):
        assert equal(seen, alone(target, dtype, text)), text.number


@pytest.mark.parametrize("tokens", [32, 33])
def test_a_text_that_is_read_twice_together_keeps_a_token_of_its_own(tokens, target) -> None:
    """Of 33 that is the last one, behind which nothing is learnt."""
    reader = tiny_target(target, "float32")
    said = torch.ones(tokens, dtype=torch.bool)
    first, second = (Text(n, START[:tokens], said) for n in range(2))
    one, other = reader.read_all([first, second])
    assert reader.computed_tokens == 2 * tokens - (tokens - 1) // 16 * 16 and equal(one, other)


@pytest.mark.parametrize("whole", [False, True])
def test_the_distribution_is_computed_where_it_is_needed(whole, target) -> None:
    """Along texts with a temperature alone, where a run asks for it there."""
    reader = tiny_target(target, "float32", whole=whole)
    reader.along_all = False
    greedy = random_text(40, 10, 256, 1)
    sampled = replace(greedy, number=2, temperature=0.7)
    first, second = reader.read_all([greedy, sampled])
    assert reader.computed_logits == 30
    assert not first.probabilities.any() and bool(second.probabilities[9:39].all())
    assert torch.equal(first.features, second.features)


def test_a_start_of_which_other_tokens_are_learnt_is_computed_again(target) -> None:
    reader = tiny_target(target, "float32")
    first, second = behind(START, 9, 0), behind(START, 9, 1)
    second.said[20:24] = True  # what stands there is learnt, from the token before it on
    together = reader.read_all([first, second])
    assert reader.computed_tokens == 59 + 59 - 16
    assert equal(together[1], alone(target, "float32", second))
    assert not equal(together[0], together[1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_start_that_was_read_last_is_not_computed_again(dtype, target) -> None:
    """Whichever text of the next ones has it, and whatever stood beside it."""
    reader = tiny_target(target, dtype)
    reader.read_all([ALIKE[5], ALIKE[1], TEXTS[2]])
    before = reader.computed_tokens
    texts = [ALIKE[1], ALIKE[0], ALIKE[3], ALIKE[4]]
    found = reader.read_all(texts)
    # 80 of ALIKE[3] are in the KV; 48 of ALIKE[0] and 32 of ALIKE[4] are a part of them.
    assert reader.computed_tokens - before == sum(map(len, texts)) - 80 - 48 - 32
    for text, seen in zip(texts, found, strict=True):
        assert equal(seen, alone(target, dtype, text)), text.number
    once_more = reader.read(ALIKE[5])
    assert equal(once_more, alone(target, dtype, ALIKE[5]))


def test_longer_texts_have_room_behind_the_start_that_was_read_last(target) -> None:
    reader = tiny_target(target, "float32")
    reader.read(ALIKE[0])
    longer = behind(START, 90, 7)
    assert equal(reader.read(longer), alone(target, "float32", longer))
    assert reader.computed_tokens == len(ALIKE[0]) + len(longer) - 48


def test_where_the_kv_grows_what_was_read_is_computed_again(target, monkeypatch) -> None:
    monkeypatch.setattr(target_module, "GROUP_TOKENS", 64)
    reader = tiny_target(target, "float32")
    reader.read(ALIKE[0])
    longer = behind(START, 90, 7)
    assert equal(reader.read(longer), alone(target, "float32", longer))
    assert reader.computed_tokens == len(ALIKE[0]) + len(longer)


def test_a_long_start_leaves_room_for_texts_behind_it(target, monkeypatch) -> None:
    monkeypatch.setattr(target_module, "GROUP_TOKENS", 40)
    reader = tiny_target(target, "float32")
    texts = [behind(START, 9, number) for number in range(5)]
    forwards: list[int] = []
    real = reader._network.forward

    def forward(batch, layers=()):
        forwards.append(len(batch.seq_starts) - 1)
        return real(batch, layers)

    monkeypatch.setattr(reader._network, "forward", forward)
    reader.read_all(texts)
    # The first one's 11 tokens beside the shared 48, then 11 of each.
    assert forwards == [3, 2]


def close(one: Seen, other: Seen) -> None:
    """The same view but for the order of sums; tokens that are nearly as likely may swap places."""
    torch.testing.assert_close(one.features.cpu(), other.features, rtol=1e-3, atol=1e-4)
    if one.probabilities is not None and other.probabilities is not None:
        torch.testing.assert_close(one.probabilities, other.probabilities, rtol=0, atol=2e-3)
    if one.likely is not None and other.likely is not None:
        assert (one.likely == other.likely).float().mean() > 0.98


@pytest.mark.parametrize("soft", [0, 4])
def test_texts_side_by_side_show_what_each_shows_in_pages(target, soft: int) -> None:
    pages = tiny_target(target, "float32", soft)
    whole = tiny_target(target, "float32", soft, whole=True)
    for one, other in zip(whole.read_all(TEXTS), pages.read_all(TEXTS), strict=True):
        close(one, other)
    assert whole.computed_logits == pages.computed_logits


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_texts_show_what_they_show_on_the_cpu(target) -> None:
    here = tiny_target(target, "float32").read_all(TEXTS)
    there = tiny_target(target, "float32", whole=True, device="cuda").read_all(TEXTS)
    assert all(seen.features.is_cuda for seen in there)
    for one, other in zip(there, here, strict=True):
        close(one, other)


def test_forwards_are_full(target, monkeypatch) -> None:
    monkeypatch.setattr(networks, "SEQUENCE_ROWS", 50)
    reader = tiny_target(target, "float32")
    rows: list[int] = []
    real = reader._network.forward

    def forward(batch, layers=()):
        rows.append(len(batch.ids))
        return real(batch, layers)

    monkeypatch.setattr(reader._network, "forward", forward)
    reader.read_all(TEXTS)
    assert rows == [50, 50, 50, 7]


def test_the_kv_in_memory_is_bounded(target, monkeypatch) -> None:
    monkeypatch.setattr(target_module, "GROUP_TOKENS", 64)
    reader = tiny_target(target, "float32")
    asked: list[int] = []
    real = reader._network.allocate_kv

    def allocate_kv(blocks: int) -> None:
        asked.append(blocks)
        real(blocks)

    monkeypatch.setattr(reader._network, "allocate_kv", allocate_kv)
    found = reader.read_all(TEXTS)
    assert max(asked) <= 4 + 4  # the longest text, and 64 tokens behind it
    pairs = zip(TEXTS, found, strict=True)
    assert all(equal(seen, alone(target, "float32", text)) for text, seen in pairs)


def test_a_text_that_is_named_twice_is_read_once(target) -> None:
    reader = tiny_target(target, "float32")
    first, second = reader.read_all([TEXTS[0], TEXTS[0]])
    assert first is second and reader.computed_tokens == len(TEXTS[0])


def test_distributions_are_computed_only_where_something_is_learnt_from_them(target) -> None:
    """The prompt's tokens but for the last one, and the last token of all, teach nothing."""
    reader = tiny_target(target, "float32")
    text = random_text(30, 12, 256)
    seen = reader.read(text)
    assert reader.computed_logits == 30 - 12
    assert seen.probabilities is not None
    learnt = seen.probabilities.sum(1) > 0
    assert learnt.tolist() == [False] * 11 + [True] * 18 + [False]
    everywhere = reader.read(Text(1, text.ids, torch.ones(30, dtype=torch.bool)))
    assert everywhere.likely is not None and seen.likely is not None
    assert torch.equal(everywhere.likely[11:29], seen.likely[11:29])


@pytest.mark.parametrize("columns", [70, 2048, 2048 + 17])
def test_the_largest_numbers_are_those_of_one_search(columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    numbers = torch.randn(3, 5, columns, generator=generator)
    numbers[0, 0, 64:70] = 9.0 + torch.arange(6)  # in one group, and in the last columns
    numbers[0, 1, -3:] = 9.0 + torch.arange(3)
    for count in (1, 8):
        found, plain = top_k(numbers, count), numbers.topk(count, dim=-1)
        assert torch.equal(found.values, plain.values)
        assert torch.equal(found.places, plain.indices)
