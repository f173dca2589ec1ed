"""A target whose features other processes write: this one reads them, and holds no layers of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields
from paceline.models.any_target import AnyTarget
from paceline.models.json_files import read_json
from paceline.models.tensors import EMBEDDING, HEAD
from paceline.models.weights import SafetensorWeights
from paceline.training.target import TrainingTarget

# Where families keep embedding and head: models of text alone, and those that see images too.
EMBEDDINGS = (EMBEDDING, f"model.language_{EMBEDDING}", f"language_model.{EMBEDDING}")
HEADS = (HEAD, f"language_model.{HEAD}")


class WrittenModel:
    """The embedding and head of a target, [vocabulary, hidden], which `engine` computes elsewhere.
    Features are for `device`.

    The constructor raises ModelError for a checkpoint without either under its usual name.
    """

    def __init__(
        self,
        target: AnyTarget,
        dtype: torch.dtype,
        device: str,
        engine: Literal["paceline", "transformers", "vllm"],
    ) -> None:
        self.engine, self.device = engine, device
        self.embedding, self.head = ends(target, dtype)


class WrittenTarget(TrainingTarget):
    """A target that this process does not compute: its folder waits for what others write."""

    def __init__(
        self,
        model: WrittenModel,
        target: AnyTarget,
        layers: Sequence[int],
        budget: int,
        soft_tokens: int = 0,
    ) -> None:
        super().__init__(target.shape, layers, budget, soft_tokens)
        self.embedding, self.head, self.device = model.embedding, model.head, model.device


def ends(target: AnyTarget, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return embedding and head of a checkpoint, which are one where its config ties them."""
    weights = SafetensorWeights(target.path)
    config = ConfigFields(read_json(target.path / "config.json"))
    tied = config.flag("tie_word_embeddings", default=True)
    embedding = next((name for name in EMBEDDINGS if name in weights), None)
    head = next((name for name in HEADS if name in weights), embedding if tied else None)
    for name, names in ((embedding, EMBEDDINGS), (head, HEADS)):
        if name is None:
            expected = " or ".join(names)
            raise ModelError(f"{target.name}: the checkpoint has no tensor {expected}")
        shape = (target.shape.vocab_size, target.shape.hidden_size)
        if (shape_there := tuple(weights[name].shape)) != shape:
            there = f"{name} has the shape {shape_there}"
            raise ModelError(f"{target.name}: {there}; expected {shape}")
    assert embedding is not None and head is not None
    return weights[embedding].to(dtype), weights[head].to(dtype)
