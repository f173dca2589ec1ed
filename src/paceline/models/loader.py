"""From a model's name to everything that serving it needs. Weights stay on disk until asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from paceline.core import ModelError
from paceline.core.cache import remembered
from paceline.core.names import local_path
from paceline.models.catalog import canonical, pull
from paceline.models.config import ModelConfig, token_ids
from paceline.models.families import config_from_hf
from paceline.models.json_files import read_json, read_optional_json
from paceline.models.tensors import EMBEDDING, HEAD
from paceline.models.tokenizer import Tokenizer, load_tokenizer
from paceline.models.weights import SafetensorWeights, check_weights, weight_files


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that passed every check. `weights` maps Hugging Face names to tensors, read lazily;
    `eos_ids` end a stream; `max_context` is the longest prompt plus output, in tokens."""

    name: str
    config: ModelConfig
    weights: Mapping[str, Tensor]
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    max_context: int
    path: Path


def load_model(name: str, *, revision: str | None = None, what: str = "model") -> LoadedModel:
    """Load a model by name, Hugging Face folder, GGUF file or hub id ("org/name"). Raises
    ModelError, naming what is missing, unexpected or not supported; `what` is its kind there."""
    return load_folder(*model_folder(name, revision=revision, what=what))


def model_folder(
    name: str, *, revision: str | None = None, what: str = "model"
) -> tuple[Path, str]:
    """Return the folder of a model, pulled where it is not there, and the name that clients see,
    which is never a path of this machine. Raises ModelError."""
    name = canonical(name, what)
    folder = pull(name, revision=revision, what=what)
    local = local_path(name, what)
    return folder, local.resolve().name if local.exists() else name


def load_folder(folder: Path, name: str) -> LoadedModel:
    """Load a Hugging Face folder: config, headers, tokenizer, in this order, each checked."""
    hf = read_json(folder / "config.json")
    try:
        config = config_from_hf(hf)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error
    weights = SafetensorWeights(folder)
    check_weights(weights, config, name)
    config = _resolve_head(weights, config)
    tokenizer = load_tokenizer(folder, name)
    if len(tokenizer) > config.vocab_size:
        raise ModelError(
            f"{name}: the tokenizer has {len(tokenizer)} tokens, "
            f"more than the network's vocabulary of {config.vocab_size}"
        )
    eos_ids = end_ids(folder, hf, tokenizer)
    return LoadedModel(name, config, weights, tokenizer, eos_ids, config.max_context, folder)


def end_ids(folder: Path, hf: Mapping[str, object], tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens that end an answer, by `generation_config.json`, `config.json` (`hf`) and
    the tokenizer."""
    generation = read_optional_json(folder / "generation_config.json")
    ends = (generation.get("eos_token_id"), hf.get("eos_token_id"), tokenizer.eos_token_id)
    return frozenset(token for end in ends for token in token_ids(end))


def _resolve_head(weights: SafetensorWeights, config: ModelConfig) -> ModelConfig:
    """Drop a tied head that is stored all the same. Checkpoints exist whose config says tied and
    whose stored head differs; like transformers, we believe the weights."""
    if not config.tie_word_embeddings or HEAD not in weights:
        return config
    if torch.equal(weights[HEAD], weights[EMBEDDING]):
        weights.discard(HEAD)
        return config
    return replace(config, tie_word_embeddings=False)


class Identified(Protocol):
    """A model with the parts that its identity is made of."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def tokenizer(self) -> Tokenizer: ...


def identity(loaded: Identified) -> dict[str, str]:
    """Return name, weights_sha256, tokenizer_sha256 and template of a target, as a training set's
    manifest and a drafter's provenance state them."""
    return {
        "name": loaded.name,
        "weights_sha256": weights_digest(loaded.path),
        "tokenizer_sha256": tokenizer_digest(loaded.path),
        "template": template_digest(getattr(loaded.tokenizer, "chat_template", None) or ""),
    }


def weights_digest(folder: Path) -> str:
    """Return SHA-256 of the weights in a model's folder. Files count by name and content, so that a
    folder may lie anywhere; they are read again where they were touched, and once a week. Raises
    ModelError for a folder that lacks them."""
    return _files_digest(weight_files(folder))


def tokenizer_digest(folder: Path) -> str:
    """Return SHA-256 of the tokenizer in a model's folder."""
    return _files_digest([folder / "tokenizer.json"])


def template_digest(template: str) -> str:
    """Return a short digest of a chat template, enough to tell two apart."""
    return hashlib.sha256(template.encode()).hexdigest()[:16]


def _files_digest(paths: list[Path]) -> str:
    """Return SHA-256 of one file; of several, over their names and digests."""
    digests = []
    for path in sorted(paths):
        digests.append((path.name, remembered(path, [path], partial(_digest, path))))
    if len(digests) == 1:
        return digests[0][1]
    return hashlib.sha256("\n".join(f"{n} {d}" for n, d in digests).encode()).hexdigest()


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
