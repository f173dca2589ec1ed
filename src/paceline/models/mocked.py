"""Models of random weights, as large and as fast as trained ones, from a config.json alone: the
time of a step depends on shapes and types, not on the values of weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from paceline.core import InvalidRequest, ModelError
from paceline.core.config_fields import ConfigFields
from paceline.models.batch import BLOCK_SIZE
from paceline.models.config import ModelConfig
from paceline.models.dflash.checkpoint import DFlashCheckpoint
from paceline.models.dflash.config import read_dflash_config
from paceline.models.dflash.tensors import dflash_tensors
from paceline.models.families import config_from_hf
from paceline.models.json_files import read_json
from paceline.models.loader import LoadedModel
from paceline.models.networks import DTYPES
from paceline.models.tensors import expected_tensors
from paceline.models.tokenizer import Tokenizer
from paceline.models.weights import RandomTensors

READABLE = 20000  # ids that print as one character each, from here on:
FIRST_CHARACTER = 0x4E00


def read_config_file(path: Path) -> ModelConfig:
    """Read a target's config.json. Raises ModelError that names the file and the field."""
    try:
        return config_from_hf(read_json(path))
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def kv_bytes(config: ModelConfig, dtype: str, tokens: int) -> int:
    """Return the bytes of KV for `tokens` tokens, in full blocks."""
    row = 2 * config.num_layers * config.num_kv_heads * config.head_dim * DTYPES[dtype].itemsize
    return -(-tokens // BLOCK_SIZE) * BLOCK_SIZE * row


def needed_bytes(config: ModelConfig, dtype: str, kv_tokens: int) -> int:
    """Return the bytes of weights, of KV, and of the largest tensor once more, as it is drawn."""
    shapes = expected_tensors(config)
    largest = max(torch.Size(shape).numel() for shape in shapes.values())
    weights = RandomTensors(shapes, DTYPES[dtype]).nbytes
    return weights + kv_bytes(config, dtype, kv_tokens) + largest * torch.float32.itemsize


def drafter_bytes(path: Path, dtype: str) -> int:
    """Return the bytes of a drafter's weights, from its config.json."""
    hf = read_json(path)
    if is_dflash(hf):
        shapes = dflash_tensors(read_dflash_config(hf))
    else:
        shapes = expected_tensors(read_config_file(path))
    return RandomTensors(shapes, DTYPES[dtype]).nbytes


def mocked_model(
    config: ModelConfig, name: str, *, dtype: str = "bfloat16", seed: int = 0
) -> LoadedModel:
    """Make a model of random weights, with a tokenizer that prints ids as characters. No token ends
    a stream."""
    weights = RandomTensors(expected_tensors(config), DTYPES[dtype], seed)
    tokenizer, context = id_tokenizer(config.vocab_size), config.max_context
    return LoadedModel(name, config, weights, tokenizer, frozenset(), context, Path(name))


def refuse_too_large(needed: int, available: int, field: str, value: object) -> None:
    """Raise InvalidRequest, with both numbers, for what does not fit memory."""
    if needed > available:
        expected = (
            f"what fits memory: weights and KV need {needed} bytes ({needed / 2**30:.1f} GiB), "
            f"and {available} bytes ({available / 2**30:.1f} GiB) are available"
        )
        raise InvalidRequest(field, value, expected)


def id_tokenizer(vocab_size: int) -> Tokenizer:
    """Decode each id to a character, ids from READABLE on to their number in brackets."""
    vocab = {chr(FIRST_CHARACTER + i) if i < READABLE else f"<{i}>": i for i in range(vocab_size)}
    backend = Backend(models.WordLevel(vocab, unk_token=next(reversed(vocab))))
    backend.decoder = decoders.Fuse()
    return Tokenizer(backend)


def is_dflash(hf: Mapping[str, object]) -> bool:
    """Return whether a drafter's config.json is a DFlash drafter's, and not a small model's."""
    names = ConfigFields(hf).words("architectures")
    return "dflash_config" in hf or any("DFlash" in name for name in names)


def mocked_dflash(path: Path, *, dtype: str = "bfloat16", seed: int = 0) -> DFlashCheckpoint:
    """Make a DFlash drafter of random weights from its config.json. Raises ModelError."""
    hf = read_json(path)
    try:
        config = read_dflash_config(hf)
    except ModelError as error:
        raise ModelError(f"drafter {path}: {error}") from error
    digest = hashlib.sha256(json.dumps(hf, sort_keys=True).encode()).hexdigest()
    weights = RandomTensors(dflash_tensors(config), DTYPES[dtype], seed)
    return DFlashCheckpoint(path.parent, "z-lab", config, hf, weights, f"mock-{digest[:12]}")
