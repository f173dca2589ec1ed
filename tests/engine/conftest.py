"""Engines over a tiny random model: the whole real path, small enough to run in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from paceline.models.loader import LoadedModel
from paceline.models.native_network import native_available
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.models.config import ModelConfig, RopeConfig
from paceline.models.random_weights import random_weights

VOCAB = 256
EOS = 3
BACKENDS = [
    pytest.param(("torch", "float32", "cpu"), id="torch-float32"),
    pytest.param(("torch", "bfloat16", "cpu"), id="torch-bfloat16"),
    pytest.param(("native", "bfloat16", "cpu"), id="native-bfloat16"),
    pytest.param(("torch", "bfloat16", "cuda"), id="cuda-bfloat16", marks=pytest.mark.cuda),
    pytest.param(("torch", "float32", "cuda"), id="cuda-float32", marks=pytest.mark.cuda),
]


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


EngineFactory = Callable[..., Engine]


@pytest.fixture(params=BACKENDS)
def make_engine(request: pytest.FixtureRequest) -> EngineFactory:
    """Builds engines over the same tiny model, for each backend and dtype."""
    backend, dtype, device = request.param
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if backend == "native":
        runs, why = native_available(tiny_config())
        if not runs:
            pytest.skip(why)

    def make(drafter: Any = None, **options: Any) -> Engine:
        fixed = {"backend": backend, "dtype": dtype, "device": device, "threads": 1}
        config = EngineConfig(model="tiny", drafter=drafter, **fixed, **options)
        return build_engine(config, tiny_model(dtype))

    return make
