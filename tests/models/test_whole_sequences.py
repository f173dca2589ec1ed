"""Sequences that are computed side by side give what they give in pages of KV."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.models import whole_sequences
from paceline.models.network import TorchNetwork
from paceline.models.networks import sequence_outputs
from paceline.models.whole_sequences import logits_of, side_by_side, whole_output
from tests.engine.tiny import tiny_config
from tests.models.tiny import random_ids
from tests.random_weights import random_weights

FAMILIES: list[dict[str, Any]] = [
    {},
    {"family": "qwen3", "qkv_bias": False, "qk_norm": True},
    {"family": "llama", "qkv_bias": False, "tie_word_embeddings": False},
]
LAYERS = (2, 0)
LENGTHS = (40, 7, 61, 1)


def network_of(changes: dict[str, Any]) -> TorchNetwork:
    config = tiny_config(num_layers=3, max_position_embeddings=128, **changes)
    network = TorchNetwork(config, random_weights(config, 5))
    network.allocate_kv(8)
    return network


@pytest.mark.parametrize("changes", FAMILIES, ids=lambda changes: changes.get("family", "qwen2"))
def test_side_by_side_gives_what_pages_give(changes: dict[str, Any], monkeypatch) -> None:
    monkeypatch.setattr(whole_sequences, "MOST_LOGITS", 9)
    network = network_of(changes)
    sequences = [random_ids(length, 256) for length in LENGTHS]
    output = whole_output(network, [torch.tensor(ids) for ids in sequences], LAYERS)
    for row, ids in enumerate(sequences):
        (_, alone), *rest = sequence_outputs(network, ids, LAYERS, logits=True)
        assert not rest and alone.features is not None
        own = slice(0, len(ids))
        torch.testing.assert_close(output.features[row, own], alone.features, rtol=1e-4, atol=1e-5)
        logits = torch.cat(list(logits_of(network, output.last[row, own])))
        torch.testing.assert_close(logits, alone.logits, rtol=1e-4, atol=1e-5)


def test_a_sequence_longer_than_the_model_is_refused() -> None:
    with pytest.raises(ValueError, match="position 128 is past 127"):
        whole_output(network_of({}), [torch.zeros(129, dtype=torch.int64)], LAYERS)


def test_groups_hold_every_sequence_once_and_few_rows_of_padding(monkeypatch) -> None:
    monkeypatch.setattr(whole_sequences, "MOST_ROWS", 100)
    lengths = [30, 90, 10, 33, 50, 200, 50, 9]
    groups = list(side_by_side(lengths))
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    rows = [len(group) * max(lengths[index] for index in group) for group in groups]
    assert all(count <= 100 for count, group in zip(rows, groups, strict=True) if len(group) > 1)
    assert sum(rows) < 1.2 * sum(lengths)
