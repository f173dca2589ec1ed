"""A tiny random model with a tokenizer of single bytes: the whole real path, in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paceline.engine.engine import Engine
from paceline.models.config import ModelConfig, RopeConfig
from paceline.models.loader import LoadedModel
from tests.random_weights import random_weights

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


def save_tiny(folder: Path, blur: float = 0.02, **changes: Any) -> Path:
    """The tiny model as a Hugging Face folder, blurred: a drafter that is often right."""
    config = tiny_config(**changes)
    weights = random_weights(config, 0)
    generator = torch.Generator().manual_seed(1)
    for name, weight in weights.items():
        weights[name] = weight + blur * torch.randn(weight.shape, generator=generator)
    save_file(weights, folder / "model.safetensors")
    byte_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(hf_json(config, EOS)))
    return folder


def hf_json(config: ModelConfig, eos_token_id: int) -> dict[str, Any]:
    """The config.json of a tiny model."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": True,
        "rope_theta": config.rope.theta,
        "eos_token_id": eos_token_id,
    }
