"""Tiny random models: a transformers network beside ours, and batches laid out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from paceline.models.batch import BLOCK_SIZE, ForwardBatch, Network

SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def hf_model(family: str, seed: int = 0, **options: Any) -> Any:
    """A transformers model with weights far enough from zero that a wrong option shows."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**SIZES, **options})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn_like(weight)
            if name.endswith("norm.weight"):
                weight.copy_(1 + 0.2 * noise)
            else:
                weight.copy_(noise * (0.1 if weight.dim() == 1 else weight.shape[-1] ** -0.5))
    return model


def hf_config(model: Any) -> dict[str, Any]:
    """The config as `save_pretrained` writes it."""
    return {**model.config.to_dict(), "architectures": [type(model).__name__]}


class Cache:
    """Hands out KV blocks in a scattered order, one list per sequence."""

    def __init__(self, network: Network, sequences: int, length: int) -> None:
        self.width = -(-length // BLOCK_SIZE)
        network.allocate_kv(sequences * self.width)
        order = np.random.default_rng(0).permutation(sequences * self.width)
        self.tables = order.reshape(sequences, self.width).astype(np.int32)

    def batch(self, parts: list[tuple[int, int, list[int]]], logits: str = "all") -> ForwardBatch:
        """`parts` are (sequence, first position, ids); `logits` is all, last (of each) or none."""
        counts = [len(ids) for _, _, ids in parts]
        starts = np.cumsum([0, *counts], dtype=np.int32)
        rows = {"all": np.arange(starts[-1]), "last": starts[1:] - 1, "none": np.arange(0)}[logits]
        return ForwardBatch(
            ids=np.concatenate([ids for _, _, ids in parts]).astype(np.int32),
            positions=np.concatenate(
                [np.arange(first, first + len(ids)) for _, first, ids in parts]
            ).astype(np.int32),
            seq_starts=starts,
            block_tables=np.ascontiguousarray(self.tables[[sequence for sequence, _, _ in parts]]),
            logit_rows=rows.astype(np.int32),
        )


def run_in_chunks(network: Network, ids: list[int], sizes: list[int]) -> torch.Tensor:
    """Logits of every row of one sequence, fed in chunks; the last of `sizes` repeats."""
    cache = Cache(network, 1, len(ids))
    logits, first = [], 0
    while first < len(ids):
        size = sizes[min(len(logits), len(sizes) - 1)]
        out = network.forward(cache.batch([(0, first, ids[first : first + size])]))
        logits.append(out.logits.clone())
        first += size
    return torch.cat(logits)


def random_ids(count: int, vocab_size: int = SIZES["vocab_size"], seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab_size, count).tolist()


def save_tokenizer(folder: Path, size: int = 150) -> None:
    """A tokenizer of `size` words, with token 2 as the end of a stream."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, size)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.save_pretrained(folder)


def save_model(folder: Path, family: str = "llama", **options: Any) -> Any:
    """Writes a whole Hugging Face folder, in float32, and returns the model."""
    shard = options.pop("max_shard_size", "1GB")
    model = hf_model(family, **options)
    model.save_pretrained(folder, max_shard_size=shard)
    save_tokenizer(folder)
    return model
