"""The frozen target: its features and distributions, kept within a budget.

A target that fits no single device lies spread over all processes (FSDP2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields
from paceline.models.batch import BLOCK_SIZE, Network
from paceline.models.config import ModelConfig
from paceline.models.json_files import read_json
from paceline.models.loader import LoadedModel
from paceline.models.networks import sequence_outputs
from paceline.training.packs import Text
from paceline.training.workers import Workers


@dataclass(frozen=True, slots=True)
class Seen:
    """The target's view of one text: `features` [tokens, layers * hidden] in its own dtype, and,
    where they are learnt, its most likely next tokens behind each token, int32 [tokens, k], with
    their probabilities, float16."""

    features: torch.Tensor
    likely: torch.Tensor | None = None
    probabilities: torch.Tensor | None = None

    @property
    def bytes(self) -> int:
        parts = (self.features, self.likely, self.probabilities)
        return sum(part.nbytes for part in parts if part is not None)

    def behind(self, anchors: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return likely tokens and their probabilities at slots 1 to `slots` behind each anchor,
        [anchors, slots, k] each."""
        assert self.likely is not None and self.probabilities is not None
        # What the token at a place should be, the target says one place before.
        before = (anchors[:, None] + torch.arange(slots)).clamp(max=len(self.likely) - 1)
        return self.likely[before].long(), self.probabilities[before].float()


class TrainingTarget:
    """The frozen target, which reads training texts. `soft_tokens` 0 keeps features alone.

    The first texts that are read are kept until `budget` bytes are full; the others are read each
    time. `computed_tokens` counts the tokens that were read. `embedding` and `head`, [vocabulary,
    hidden], are the target's; `together` means that all processes must read a text at the same
    time.
    """

    embedding: torch.Tensor
    head: torch.Tensor
    together = False

    def __init__(
        self, shape: ModelConfig, layers: Sequence[int], budget: int, soft_tokens: int = 0
    ) -> None:
        self.shape = shape
        self._layers, self._soft = tuple(layers), soft_tokens
        self._left, self._kept = budget, dict[int, Seen]()
        self._preferred: dict[int, int] = {}
        self.computed_tokens = 0

    def prefer(self, texts: Sequence[Text]) -> None:
        """Keep these texts before any others."""
        self._preferred = {text.number: len(text) for text in texts}

    def features(self, text: Text) -> torch.Tensor:
        return self.read(text).features

    def read(self, text: Text) -> Seen:
        kept = self._kept.get(text.number)
        if kept is not None:
            return kept
        seen = self._compute(text)
        self.computed_tokens += len(text)
        waiting = self._preferred.pop(text.number, 0)
        bytes_per_token = seen.bytes / len(text)
        reserved = 0.0 if waiting else bytes_per_token * sum(self._preferred.values())
        if seen.bytes <= self._left - reserved:
            self._left -= seen.bytes
            self._kept[text.number] = seen
        return seen

    def _compute(self, text: Text) -> Seen:
        raise NotImplementedError


class LocalTarget(TrainingTarget):
    """A target whose network is in this process. No other code may use the KV of the network."""

    def __init__(
        self,
        network: Network,
        shape: ModelConfig,
        layers: Sequence[int],
        budget: int,
        soft_tokens: int = 0,
    ) -> None:
        super().__init__(shape, layers, budget, soft_tokens)
        self._network, self._room = network, 0
        everything = torch.arange(network.vocab_size)
        self.embedding = network.embedding_rows(everything)
        self.head = network.head_rows(everything)

    def _compute(self, text: Text) -> Seen:
        blocks = -(-len(text) // BLOCK_SIZE)
        if blocks > self._room:
            self._network.allocate_kv(blocks)
            self._room = blocks
        features, soft = [], []
        ids = text.ids.tolist()
        for _, output in sequence_outputs(self._network, ids, self._layers, bool(self._soft)):
            assert output.features is not None
            features.append(output.features.cpu())
            if self._soft:
                soft.append(likely_tokens(output.logits, self._soft))
        if not self._soft:
            return Seen(torch.cat(features))
        likely, probabilities = zip(*soft, strict=True)
        return Seen(torch.cat(features), torch.cat(likely), torch.cat(probabilities))


def likely_tokens(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` most likely tokens of each row, int32, and their probabilities,
    float16."""
    logits = logits.float()
    top = logits.topk(count, dim=-1)
    normaliser = logits.logsumexp(-1, keepdim=True)
    return top.indices.int().cpu(), (top.values - normaliser).exp().half().cpu()


class ShardedTarget(TrainingTarget):
    """A target that transformers computes, in layers spread over all processes.

    Each layer is gathered for the moment it computes (`torch.distributed.fsdp.fully_shard`), so
    every process must read a text whenever one does. Nothing is kept therefore, and no process
    takes more texts than another.
    """

    together = True

    def __init__(
        self,
        loaded: LoadedModel,
        layers: Sequence[int],
        workers: Workers,
        dtype: torch.dtype,
        soft_tokens: int = 0,
    ) -> None:
        super().__init__(loaded.config, layers, 0, soft_tokens)
        self._device = workers.device
        model = _load(loaded, dtype)
        self.embedding = model.get_input_embeddings().weight.detach().clone()
        self.head = model.get_output_embeddings().weight.detach().clone()
        kind = torch.device(workers.device).type
        mesh = init_device_mesh(kind, (workers.count,))
        decoder = model.model.layers
        for layer in decoder:
            fully_shard(layer, mesh=mesh)
        self._model = fully_shard(model, mesh=mesh)
        self._taps: dict[int, torch.Tensor] = {}
        for index in set(layers):
            decoder[index].register_forward_hook(partial(self._keep, index))

    def _keep(self, index: int, module: nn.Module, inputs: object, output: object) -> None:
        features = output[0] if isinstance(output, tuple) else output
        assert isinstance(features, torch.Tensor)
        self._taps[index] = features

    @torch.no_grad()
    def _compute(self, text: Text) -> Seen:
        ids = text.ids[None].to(self._device)
        kept = 0 if self._soft else 1  # of the logits; 0 means all
        logits = self._model(ids, use_cache=False, logits_to_keep=kept).logits[0]
        rows = [self._taps[layer].view(len(text), -1) for layer in self._layers]
        features = torch.cat(rows, dim=-1).cpu()
        if not self._soft:
            return Seen(features)
        return Seen(features, *likely_tokens(logits, self._soft))


def _load(loaded: LoadedModel, dtype: torch.dtype) -> Any:
    import transformers

    names = ConfigFields(read_json(loaded.path / "config.json")).words("architectures")
    architecture = names[0] if names else "none named"
    kind = getattr(transformers, architecture, None)
    if kind is None:
        raise ModelError(f"{loaded.name}: transformers knows no architecture {architecture}")
    try:
        model = kind.from_pretrained(loaded.path, dtype=dtype, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ModelError(f"{loaded.name}: transformers cannot load it ({error})") from error
    return model.eval().requires_grad_(False)
