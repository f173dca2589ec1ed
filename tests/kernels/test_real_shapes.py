"""Row invariance at the size of a real model, where products have dozens of blocks along k.

One layer of Qwen2.5-Coder-1.5B. Its features are compared as well as its logits: all that the
layer's products, norms and attention do shows there, before the head blurs anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType

import pytest
import torch

from paceline.models.config import ModelConfig, RopeConfig
from paceline.models.native_network import NativeNetwork

from .tiny import Sequences, bf16_weights, ids_of

ROWS = (1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 48)
LENGTH = 320  # 20 blocks of KV, and more than one chunk of 256 positions
HEAD, WIDE_HEAD = 20_000, 151_936


def layer_of_1_5b(vocab: int) -> ModelConfig:
    return ModelConfig(
        family="qwen2", vocab_size=vocab, hidden_size=1536, intermediate_size=8960, num_layers=1,
        num_heads=12, num_kv_heads=2, head_dim=128, rms_norm_eps=1e-6, qkv_bias=True, o_bias=False,
        mlp_bias=False, qk_norm=False, tie_word_embeddings=True, max_position_embeddings=LENGTH,
        rope=RopeConfig(theta=1e6),
    )  # fmt: skip


@cache
def weights(vocab: int) -> Mapping[str, torch.Tensor]:
    return MappingProxyType(bf16_weights(layer_of_1_5b(vocab)))


class Rows:
    """Return a network's output for parts (sequence, first position, ids): features and logits."""

    def __init__(self, network: NativeNetwork, count: int) -> None:
        self.network, self.sequences = network, Sequences(network, count, LENGTH)

    def __call__(self, *parts: tuple[int, int, list[int]]) -> torch.Tensor:
        output = self.network.forward(self.sequences.batch(*parts), feature_layers=(0,))
        return torch.cat([output.features.float(), output.logits], dim=1)


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def network(kernel_path: str) -> NativeNetwork:
    return NativeNetwork(layer_of_1_5b(HEAD), weights(HEAD), LENGTH)


def assert_any_rows_give_the_same_bits(network: NativeNetwork, vocab: int) -> None:
    ids = ids_of(LENGTH, vocab)
    whole = Rows(network, 1)((0, 0, ids))
    rows = Rows(network, 1)
    start = 0
    for size in (*ROWS, LENGTH - sum(ROWS)):
        part = rows((0, start, ids[start : start + size]))
        assert torch.equal(part, whole[start : start + size]), f"{size} rows at {start}"
        start += size
    # Everything is in the cache now: every number of rows again, over the longest context.
    for size in ROWS:
        start = LENGTH - size
        assert torch.equal(rows((0, start, ids[start:])), whole[start:]), f"{size} rows at the end"


def test_any_number_of_rows_at_once(network: NativeNetwork) -> None:
    assert_any_rows_give_the_same_bits(network, HEAD)


@pytest.mark.slow
def test_any_number_of_rows_with_a_whole_vocabulary(native: str) -> None:
    network = NativeNetwork(layer_of_1_5b(WIDE_HEAD), weights(WIDE_HEAD), LENGTH)
    assert_any_rows_give_the_same_bits(network, WIDE_HEAD)


def test_prompt_chunks_of_any_size(network: NativeNetwork) -> None:
    ids = ids_of(LENGTH, HEAD)
    whole, rows = Rows(network, 1)((0, 0, ids)), Rows(network, 1)
    for chunk in (33, 129):
        for start in range(0, LENGTH, chunk):
            part = rows((0, start, ids[start : start + chunk]))
            assert torch.equal(part, whole[start : start + chunk]), f"{chunk} rows at {start}"


# Sequences in one step: decoding, verifying and taking in prompts, with contexts that end before,
# at and behind the borders of KV blocks and of the chunk of 256.
HELD = (0, 15, 16, 17, 31, 255, 256, 271)
FRESH = (48, 1, 16, 2, 33, 3, 17, 7)


def assert_batch_mates_do_not_matter(network: NativeNetwork, threads: int) -> None:
    prompts = [ids_of(old + new, HEAD, seed=old) for old, new in zip(HELD, FRESH, strict=True)]
    olds = [(i, 0, ids[:old]) for i, (ids, old) in enumerate(zip(prompts, HELD, strict=True))]
    news = [(i, old, ids[old:]) for i, (ids, old) in enumerate(zip(prompts, HELD, strict=True))]
    alone = [Rows(network, 1)((0, 0, ids))[old:] for ids, old in zip(prompts, HELD, strict=True)]
    torch.set_num_threads(threads)
    rows = Rows(network, len(prompts))
    rows(*olds[1:])  # the first holds nothing yet
    assert torch.equal(rows(*news), torch.cat(alone))
    # In pairs, the other way round: other mates, and another place among the rows.
    for a in range(0, len(prompts), 2):
        pair = rows(news[a + 1], news[a])
        assert torch.equal(pair, torch.cat([alone[a + 1], alone[a]])), f"sequences {a + 1}, {a}"


@pytest.mark.parametrize(
    "threads", [2, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 3))]
)
def test_batch_mates(native: str, threads: int) -> None:
    network = NativeNetwork(layer_of_1_5b(HEAD), weights(HEAD), LENGTH)
    torch.set_num_threads(2)
    assert_batch_mates_do_not_matter(network, threads)
