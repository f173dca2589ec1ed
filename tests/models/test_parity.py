"""Float32 logits equal transformers' on tiny random models of every family and every option."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.models.families import config_from_hf
from paceline.models.network import TorchNetwork
from tests.models.tiny import Cache, hf_config, hf_model, random_ids, run_in_chunks

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 1e4,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama no GQA": ("llama", {"num_key_value_heads": 4}),
    "llama one KV head": ("llama", {"num_key_value_heads": 1}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama head_dim": ("llama", {"head_dim": 20}),
    "llama linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}},
    ),
    "llama llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral window": ("mistral", {"sliding_window": 128}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 yarn": ("qwen2", {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8}}),
    "qwen2 yarn untruncated": ("qwen2", {"rope_parameters": {**YARN, "truncate": False}}),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "qwen3 tied biases": (
        "qwen3",
        {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True},
    ),
}


@pytest.fixture(params=CASES, scope="module")
def pair(request: pytest.FixtureRequest) -> tuple[Any, TorchNetwork]:
    family, options = CASES[request.param]
    model = hf_model(family, **options)
    return model, TorchNetwork(config_from_hf(hf_config(model)), model.state_dict())


@torch.no_grad()
def test_logits_equal_transformers(pair: tuple[Any, TorchNetwork]) -> None:
    model, network = pair
    ids = random_ids(100)
    expected = model(torch.tensor([ids])).logits[0]
    assert expected.std() > 0.3
    for sizes in ([100], [33, 7, 1, 40], [1]):
        assert (run_in_chunks(network, ids, sizes) - expected).abs().max() < 1e-4


@torch.no_grad()
def test_feature_taps_are_hidden_states(pair: tuple[Any, TorchNetwork]) -> None:
    model, network = pair
    ids = random_ids(20)
    states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    cache = Cache(network, 1, len(ids))
    out = network.forward(cache.batch([(0, 0, ids)], "last"), feature_layers=(1, 0))
    assert out.features is not None and out.features.shape == (20, 2 * network.hidden_size)
    expected = torch.cat([states[2][0], states[1][0]], dim=-1)
    assert (out.features - expected).abs().max() < 1e-4
    assert out.logits.shape == (1, network.vocab_size)
