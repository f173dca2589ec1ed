"""A tiny random model with a tokenizer of single bytes: the whole real path, in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paceline.engine.engine import Engine
from paceline.models.config import ModelConfig, RopeConfig
from paceline.models.loader import LoadedModel
from paceline.models.random_weights import random_weights

VOCAB, EOS = 256, 3
EngineFactory = Callable[..., Engine]


@cache
def byte_tokenizer() -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def tiny_config(**changes: Any) -> ModelConfig:
    options: dict[str, Any] = {
        "family": "qwen2",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "qkv_bias": True,
        "o_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
        "tie_word_embeddings": True,
        "max_position_embeddings": 1024,
        "rope": RopeConfig(),
    }
    return ModelConfig(**{**options, **changes})


def tiny_model(dtype: str, seed: int = 0, **changes: Any) -> LoadedModel:
    config = tiny_config(**changes)
    return LoadedModel(
        name="tiny",
        config=config,
        weights=random_weights(config, seed, getattr(torch, dtype)),
        tokenizer=byte_tokenizer(),
        eos_ids=frozenset({EOS}),
        max_context=config.max_context,
        path=Path("tiny"),
    )
