"""The fused forward's ticks: they change no bit, and say what all of its time went into."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from paceline.core.spans import OFF, Lane, Recording, Span
from paceline.models.batch import forward_parts
from paceline.models.native_network import NativeNetwork
from paceline.models.network import TorchNetwork
from paceline.models.quantized import INT8, UNQUANTIZED, Recipe
from tests.kernels.tiny import CONFIGS, LENGTH, Sequences, bf16_weights, ids_of, native_network

ROWS = (1, 2, 3, 40)  # below and above what every thread prepares for itself


def recorded(sequences: Sequences, *parts: tuple[int, int, list[int]]) -> list[Span]:
    lane = Recording().lane("engine")
    sequences.network.record(lane)
    with lane("forward"):
        sequences.run(*parts)
    sequences.network.record(OFF)
    return lane.spans()


@pytest.mark.parametrize("config", ["llama", "qwen3"])
@pytest.mark.parametrize("recipe", [UNQUANTIZED, INT8], ids=["bf16", "int8"])
def test_ticks_change_no_bit(kernel_path: str, config: str, recipe: Recipe) -> None:
    network = NativeNetwork(CONFIGS[config], bf16_weights(CONFIGS[config]), LENGTH, recipe)
    sequences = Sequences(network, 2, 128)
    for rows in ROWS:
        parts = (0, 0, ids_of(rows)), (1, 0, ids_of(rows, seed=1))
        network.record(OFF)
        plain = sequences.run(*parts)
        lane = Recording().lane("engine")
        network.record(lane)
        with lane("forward"):
            assert torch.equal(sequences.run(*parts), plain)
        assert len(lane) > 1
        network.record(OFF)
        assert torch.equal(sequences.run(*parts), plain)


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_follow_each_other_within_the_forward(native: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        network = native_network(CONFIGS["llama"])
        sequences = Sequences(network, 1, 512)
        sequences.run((0, 0, ids_of(400)))  # buffers are made now
        runs = [recorded(sequences, (0, 0, ids_of(400))) for _ in range(5)]
    finally:
        torch.set_num_threads(before)
    for forward, *parts in runs:
        assert [part.name for part in parts] == list(forward_parts(network.num_layers))
        assert forward.start <= parts[0].start and parts[-1].end <= forward.end
        for part, following in pairwise(parts):
            assert part.start <= part.end == following.start
        assert all(p.duration > 0 for p in parts if p.name not in ("taps", "embed"))


def test_a_prompts_chunk_has_no_head_to_pay_for(native: str) -> None:
    network = native_network(CONFIGS["llama"])
    sequences = Sequences(network, 1, 64)
    batch = sequences.batch((0, 0, ids_of(8)))
    batch.logit_rows = batch.logit_rows[:0]
    lane = Recording().lane("engine")
    network.record(lane)
    with lane("forward"):
        network.forward(batch)
    spans = lane.spans()
    head, down = spans[-1], [s for s in spans if s.name == "down"]
    assert head.name == "head" and head.duration < min(span.duration for span in down)


def test_nothing_is_written_where_nobody_listens(native: str) -> None:
    network = native_network(CONFIGS["llama"])
    sequences = Sequences(network, 1, 64)
    lane = Recording().lane("engine")
    network.record(lane)
    network.record(OFF)
    sequences.run((0, 0, ids_of(3)))
    assert isinstance(lane, Lane) and len(lane) == 0


@pytest.mark.parametrize("recipe", [UNQUANTIZED, INT8], ids=["bf16", "int8"])
def test_parts_stream_what_the_whole_streams(native: str, recipe: Recipe) -> None:
    for config in CONFIGS.values():
        network = NativeNetwork(config, bf16_weights(config), LENGTH, recipe)
        assert sum(network.streamed_parts.values()) == network.streamed_bytes
        assert set(network.streamed_parts) < set(forward_parts(1))


def test_the_torch_twin_tells_the_same_parts() -> None:
    config = CONFIGS["llama"]
    network = TorchNetwork(config, bf16_weights(config), max_positions=LENGTH)
    sequences = Sequences(network, 1, 64)
    plain = sequences.run((0, 0, ids_of(5)))
    forward, *parts = recorded(sequences, (0, 0, ids_of(5)))
    assert torch.equal(sequences.run((0, 0, ids_of(5))), plain)
    names = [part.name for part in parts if part.name != "norm"]
    assert names == [name for name in forward_parts(config.num_layers) if name != "taps"]
    assert sum(network.streamed_parts.values()) == network.streamed_bytes
    assert all(forward.start <= p.start <= p.end <= forward.end for p in parts)
