"""Tiny random models of every option the kernels know, and batches over scattered KV blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from paceline.models.batch import BLOCK_SIZE, ForwardBatch, Network
from paceline.models.config import ModelConfig, RopeConfig
from paceline.models.native_network import NativeNetwork
from tests.random_weights import random_weights

LENGTH = 3000  # more than eleven chunks of 256 positions

_BASE: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 80,  # no multiple of 32: every product has padding along k
    "intermediate_size": 88,  # no multiple of 16: gate and up have padded panels
    "num_layers": 2,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "qkv_bias": False,
    "o_bias": False,
    "mlp_bias": False,
    "qk_norm": False,
    "tie_word_embeddings": True,
    "max_position_embeddings": LENGTH,
    "rope": RopeConfig(theta=10000.0),
}
CONFIGS = {
    "llama": ModelConfig(family="llama", **_BASE),
    "llama-biases": ModelConfig(
        family="llama",
        **_BASE
        | {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    ),
    "qwen2": ModelConfig(
        family="qwen2", **_BASE | {"qkv_bias": True, "num_heads": 7, "num_kv_heads": 1}
    ),
    "qwen3": ModelConfig(
        family="qwen3",
        **_BASE | {"qk_norm": True, "head_dim": 128, "num_heads": 4, "tie_word_embeddings": False},
    ),
    "narrow-heads": ModelConfig(
        family="llama", **_BASE | {"head_dim": 16, "num_heads": 5, "num_kv_heads": 5}
    ),
}


def bf16_weights(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    return random_weights(config, seed=seed, dtype=torch.bfloat16)


def native_network(config: ModelConfig) -> NativeNetwork:
    return NativeNetwork(config, bf16_weights(config), LENGTH)


def ids_of(count: int, vocab: int = 199, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


class Sequences:
    """Sequences with scattered blocks in one KV cache."""

    def __init__(self, network: Network, count: int, length: int) -> None:
        width = -(-length // BLOCK_SIZE)
        network.allocate_kv(count * width)
        order = np.random.default_rng(1).permutation(count * width)
        self.network, self.tables = network, order.reshape(count, width).astype(np.int32)

    def run(self, *parts: tuple[int, int, list[int]]) -> torch.Tensor:
        """Logits of all rows of parts (sequence, first position, ids), in order."""
        return self.network.forward(self.batch(*parts)).logits.clone()

    def batch(self, *parts: tuple[int, int, list[int]]) -> ForwardBatch:
        starts = np.cumsum([0] + [len(ids) for _, _, ids in parts])
        positions = [np.arange(first, first + len(ids)) for _, first, ids in parts]
        return ForwardBatch(
            ids=np.concatenate([ids for _, _, ids in parts]).astype(np.int32),
            positions=np.concatenate(positions).astype(np.int32),
            seq_starts=starts.astype(np.int32),
            block_tables=np.ascontiguousarray(self.tables[[s for s, _, _ in parts]]),
            logit_rows=np.arange(starts[-1], dtype=np.int32),
        )
