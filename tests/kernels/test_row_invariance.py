"""A row's bits depend on that row alone: not on batch mates, chunks, threads or KV splits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .tiny import CONFIGS, Sequences, ids_of, native_network


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", CONFIGS)
def test_any_number_of_rows_at_once(kernel_path: str, name: str) -> None:
    network, ids = native_network(CONFIGS[name]), ids_of(300)
    whole = Sequences(network, 1, 300).run((0, 0, ids))
    sequences = Sequences(network, 1, 300)
    start = 0
    for size in [*range(1, 18), 31, 32, 33, 48]:
        part = sequences.run((0, start, ids[start : start + size]))
        assert torch.equal(part, whole[start : start + len(part)]), f"{size} rows at {start}"
        start = (start + size) % 251


def test_prompt_chunks_of_any_size(kernel_path: str) -> None:
    network, ids = native_network(CONFIGS["qwen2"]), ids_of(700)
    whole = Sequences(network, 1, 700).run((0, 0, ids))
    for chunk in (253, 97):
        sequences = Sequences(network, 1, 700)
        parts = [
            sequences.run((0, first, ids[first : first + chunk])) for first in range(0, 700, chunk)
        ]
        assert torch.equal(torch.cat(parts), whole)


def test_batch_mates(kernel_path: str) -> None:
    network = native_network(CONFIGS["qwen3"])
    prompts = [ids_of(count, seed=count) for count in (5, 90, 1, 33, 270, 17, 300, 64)]
    alone = [Sequences(network, 1, 320).run((0, 0, ids)) for ids in prompts]
    together = Sequences(network, len(prompts), 320).run(
        *((index, 0, ids) for index, ids in enumerate(prompts))
    )
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_long_context_and_threads(native: str, threads: int) -> None:
    network, ids = native_network(CONFIGS["llama"]), ids_of(2900)
    torch.set_num_threads(2)
    whole = Sequences(network, 1, 2900).run((0, 0, ids))
    torch.set_num_threads(threads)
    sequences = Sequences(network, 1, 2900)
    sequences.run((0, 0, ids[:2100]))
    for start, size in ((2100, 1), (2101, 16), (2117, 5), (2122, 700), (2822, 1)):
        rows = sequences.run((0, start, ids[start : start + size]))
        assert torch.equal(rows, whole[start : start + size]), f"{size} rows at {start}"
