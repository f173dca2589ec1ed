"""A row's bits depend on that row alone: not on chunk borders, batch mates or their contexts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.models.batch import Network
from paceline.models.families import config_from_hf
from paceline.models.network import TorchNetwork
from tests.models.tiny import SIZES, Cache, hf_config, hf_model, random_ids, run_in_chunks
from tests.random_weights import random_weights

LENGTH = 600  # three chunks of keys, the last one part full


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"], scope="module")
def network(request: pytest.FixtureRequest) -> TorchNetwork:
    model = hf_model("qwen3", head_dim=24, attention_bias=True, num_attention_heads=6)
    config = config_from_hf(hf_config(model))
    return TorchNetwork(config, random_weights(config, seed=3), dtype=request.param)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_chunk_borders_do_not_change_bits(network: TorchNetwork, threads: int) -> None:
    ids = random_ids(LENGTH)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        whole = run_in_chunks(network, ids, [LENGTH])
        for sizes in ([1, 2, 3, 5, 17, 31, 33, 100], [257, 1, 16], [64]):
            assert torch.equal(run_in_chunks(network, ids, sizes), whole)
    finally:
        torch.set_num_threads(before)


def test_token_by_token_equals_one_go(network: TorchNetwork) -> None:
    ids = random_ids(150, seed=1)
    assert torch.equal(run_in_chunks(network, ids, [1]), run_in_chunks(network, ids, [150]))


def test_batch_mates_do_not_change_bits(network: TorchNetwork) -> None:
    """Five sequences join and advance at different paces; each equals its solo run."""
    lengths = [300, 41, 130, 7, 520]
    streams = [random_ids(n, seed=n) for n in lengths]
    alone = [run_in_chunks(network, ids, [len(ids)]) for ids in streams]
    cache, done = Cache(network, len(streams), max(lengths)), [0] * len(streams)
    rng = np.random.default_rng(0)
    while done != lengths:
        parts = []
        for index in rng.permutation(len(streams)):
            step = min(int(rng.choice([0, 1, 4, 16, 90])), lengths[index] - done[index])
            if step:
                parts.append((int(index), done[index], streams[index][done[index] :][:step]))
        if not parts:
            continue
        logits, row = network.forward(cache.batch(parts)).logits, 0
        for index, first, ids in parts:
            assert torch.equal(logits[row : row + len(ids)], alone[index][first : first + len(ids)])
            row, done[index] = row + len(ids), first + len(ids)


def test_rejected_rows_leave_no_trace(network: TorchNetwork) -> None:
    """KV rollback is moving a length: rows past it, infinities even, are never read."""
    ids = random_ids(60, seed=2)
    expected = run_in_chunks(network, ids, [60])
    cache = Cache(network, 1, 80)
    network.forward(cache.batch([(0, 0, ids[:40] + random_ids(30, seed=9))]))
    for keys, values in network.kv:
        flat = cache.tables[0, 3:]  # whole blocks past position 48
        keys[flat], values[flat] = torch.inf, torch.nan
    out = network.forward(cache.batch([(0, 40, ids[40:48])]))
    assert torch.equal(out.logits, expected[40:48])
    out = network.forward(cache.batch([(0, 48, ids[48:])]))
    assert torch.equal(out.logits, expected[48:])


def test_argmax_ties_go_to_the_lowest_id() -> None:
    config = config_from_hf({**hf_config(hf_model("llama")), "tie_word_embeddings": False})
    weights = random_weights(config)
    head = weights["lm_head.weight"]
    head[150:] = head[:49]  # ids 150… score exactly as 0… do
    network: Network = TorchNetwork(config, weights)
    cache = Cache(network, 1, 64)
    out = network.forward(cache.batch([(0, 0, random_ids(64))]))
    assert torch.equal(out.logits[:, 150:], out.logits[:, :49])
    assert int(out.argmax.max()) < 150 and int(out.argmax.min()) < 49
    assert out.argmax.dtype == torch.int64 and SIZES["vocab_size"] == out.logits.shape[1]
