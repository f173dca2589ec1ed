"""Targets of which this process holds no layers: another engine shows their features, or other
processes write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields
from paceline.models.any_target import AnyTarget
from paceline.models.json_files import read_json
from paceline.models.tensors import EMBEDDING, HEAD
from paceline.models.weights import SafetensorWeights
from paceline.training.config import TargetEngine
from paceline.training.packs import Text
from paceline.training.seen import Seen
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
        engine: TargetEngine,
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


class ShowsFeatures(Protocol):
    """A target that another engine computes: its embedding and head, [vocabulary, hidden]."""

    embedding: torch.Tensor
    head: torch.Tensor

    def features(self, texts: Sequence[Text], layers: Sequence[int]) -> list[torch.Tensor]:
        """Return [tokens, layers * hidden] of each text."""

    def close(self) -> None: ...


class ShownTarget(TrainingTarget):
    """A target that another engine computes. It shows features alone, which are kept in this
    memory. Its operations are not counted."""

    def __init__(
        self, model: ShowsFeatures, target: AnyTarget, layers: Sequence[int], budget: int
    ) -> None:
        super().__init__(target.shape, layers, budget)
        self._model = model
        self.embedding, self.head = model.embedding, model.head

    def operations(self, tokens: int, logits: int) -> float:
        return 0.0

    def close(self) -> None:
        self._model.close()

    def _compute(self, texts: Sequence[Text]) -> list[Seen]:
        return [Seen(features) for features in self._model.features(texts, self._layers)]


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
