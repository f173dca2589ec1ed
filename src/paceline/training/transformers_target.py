"""A target that `transformers` computes: any causal model that it can load, quantised ones
included, in one process or spread over all of them (FSDP2)."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from paceline.core import ModelError
from paceline.models.any_target import AnyTarget
from paceline.models.whole_sequences import side_by_side
from paceline.training.causal_model import decoder_layers, load_causal_model, load_spread
from paceline.training.packs import Text
from paceline.training.seen import Seen
from paceline.training.target import TrainingTarget, likely_tokens
from paceline.training.workers import Workers

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
FILLER = Text(0, torch.zeros(2, dtype=torch.long), torch.tensor([False, True]))
EXPERTS_OF_A_TOKEN = ("num_experts_per_tok", "moe_topk", "top_k_experts")


class TransformersModel:
    """The target as transformers loads it, frozen: on `device`, or with its layers spread over all
    processes of `workers`. `embedding` and `head` are its own, [vocabulary, hidden]; `operations`
    are those of a token in its layers, without attention itself.

    The constructor raises ModelError for what transformers cannot load, or not take features of.
    """

    engine: Literal["transformers"] = "transformers"

    def __init__(
        self, target: AnyTarget, dtype: torch.dtype, device: str, workers: Workers | None = None
    ) -> None:
        self.device, self.workers = device, workers
        if workers is None:
            self.module = load_causal_model(target, dtype, device)
        else:
            self.module = load_spread(target, dtype, workers)
        self.embedding = _matrix(self.module.get_input_embeddings(), target)
        self.head = _matrix(self.module.get_output_embeddings(), target)
        self.layers = decoder_layers(self.module, target)
        self.operations = 2.0 * _weights_of_a_token(self.layers, self.module.config)
        self._cuts_logits = "logits_to_keep" in inspect.signature(self.module.forward).parameters
        self._taps: dict[int, torch.Tensor] = {}
        self._read = torch.Size((0, 0))  # texts and tokens of the last forward

    def tap(self, layers: Sequence[int]) -> None:
        """Keep the outputs of these layers, which number from 0, in every forward."""
        for index in set(layers):
            self.layers[index].register_forward_hook(partial(self._keep, index))

    def _keep(self, index: int, module: nn.Module, inputs: object, output: object) -> None:
        """Keep the features of a layer. Raises ModelError for what is no row of the hidden size for
        each token, as in DeepSeek-V4, whose layers return several (`hc_mult`)."""
        features = output[0] if isinstance(output, tuple) else output
        found = list(features.shape) if isinstance(features, torch.Tensor) else type(features)
        expected = [*self._read, self.embedding.shape[1]]
        if not isinstance(features, torch.Tensor) or found != expected:
            family = self.module.config.model_type
            raise ModelError(
                f"{family}: layer {index} ({type(module).__name__}) returns {found}; "
                f"expected [texts, tokens, hidden size], here {expected}"
            )
        self._taps[index] = features

    @torch.no_grad()
    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None, columns: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute ids [texts, tokens], of which `mask` says what is no padding; return logits
        [texts, len(columns), vocabulary] at these places, of no meaning where there are none."""
        options: dict[str, Any] = {"use_cache": False, "attention_mask": mask}
        if self._cuts_logits:
            options["logits_to_keep"] = 1 if columns is None else columns
        self._read = ids.shape
        logits: torch.Tensor = self.module(ids, **options).logits
        if self._cuts_logits or columns is None:
            return logits
        return logits[:, columns]

    def features(self, layers: Sequence[int]) -> torch.Tensor:
        """Return what the last forward kept of these layers, [texts, tokens, layers * hidden]."""
        return torch.cat([self._taps[layer] for layer in layers], dim=-1)


class TransformersTarget(TrainingTarget):
    """A target in this process that transformers computes.

    On CUDA texts are read side by side, padded to the longest, as models.whole_sequences groups
    them; on a CPU, where that brings nothing, one after the other. Features stay on the device.
    """

    def __init__(
        self,
        model: TransformersModel,
        target: AnyTarget,
        layers: Sequence[int],
        budget: int,
        soft_tokens: int = 0,
    ) -> None:
        super().__init__(target.shape, layers, budget, soft_tokens)
        self._model, self.device = model, model.device
        self.embedding, self.head = model.embedding, model.head
        model.tap(layers)

    def operations(self, tokens: int, logits: int) -> float:
        return tokens * self._model.operations + 2.0 * logits * self.head.numel()

    def _groups(self, texts: Sequence[Text]) -> list[list[int]]:
        """Split the places of texts into those that are read in one forward."""
        if torch.device(self._model.device).type == "cuda":
            return [list(group) for group in side_by_side([len(text) for text in texts])]
        return [[index] for index in range(len(texts))]

    def _compute(self, texts: Sequence[Text]) -> list[Seen]:
        seen: dict[int, Seen] = {}
        for group in self._groups(texts):
            found = self.compute_group([texts[index] for index in group])
            seen.update(zip(group, found, strict=True))
        return [seen[index] for index in range(len(texts))]

    def compute_group(self, texts: Sequence[Text]) -> list[Seen]:
        """Read texts in one forward, the shorter ones padded behind their end."""
        longest = max(map(len, texts))
        ids = torch.zeros(len(texts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)], mask[row, : len(text)] = text.ids, 1
        wanted = [self._wanted(text) for text in texts]
        columns = None
        if self.soft_tokens:
            columns = torch.from_numpy(np.unique(np.concatenate([w.nonzero()[0] for w in wanted])))
        device = self._model.device
        padded = mask.to(device) if len({len(text) for text in texts}) > 1 else None
        places = None if columns is None else columns.to(device)
        logits = self._model.forward(ids.to(device), padded, places)
        features = self._model.features(self._layers)
        return [
            self._seen_of(features[row, : len(text)].clone(), logits[row], columns, wanted[row])
            for row, text in enumerate(texts)
        ]

    def _seen_of(
        self,
        features: torch.Tensor,
        logits: torch.Tensor,
        columns: torch.Tensor | None,
        wanted: np.ndarray,
    ) -> Seen:
        if columns is None:
            return Seen(features)
        marks = torch.from_numpy(wanted)
        soft: list[tuple[torch.Tensor, torch.Tensor]] = []
        if marks.any():
            rows = torch.isin(columns, marks.nonzero()[:, 0])
            self.computed_logits += int(rows.sum())
            soft.append(likely_tokens(logits[rows.to(logits.device)], self.soft_tokens))
        return self._seen(features, soft, marks)


class ShardedTarget(TransformersTarget):
    """A target that transformers computes, in layers spread over all processes (FSDP2).

    Each layer is gathered for the moment it computes (`torch.distributed.fsdp.fully_shard`), so
    every process must compute a text whenever one does. fetch() has them do so, and nothing is kept
    longer than until the next one.
    """

    def __init__(
        self, model: TransformersModel, target: AnyTarget, layers: Sequence[int], soft: int = 0
    ) -> None:
        super().__init__(model, target, layers, 0, soft)
        self._fetched: dict[int, Seen] = {}

    def fetch(self, texts: Sequence[Text]) -> None:
        """Read the texts that the folder lacks. A process with fewer forwards than another computes
        FILLER in the others."""
        self._fetched = {}  # before the next ones take as much memory
        workers = self._model.workers
        assert workers is not None, "its layers are spread"
        found = self._stored(texts)
        missing = list({text.number: text for text in texts if text.number not in found}.values())
        forwards = len(self._groups(missing))
        rest = workers.most(forwards) - forwards  # all agree before anybody computes
        computed = self._compute(missing)
        for _ in range(rest):
            self.compute_group([FILLER])
        self.computed_tokens += sum(map(len, missing))
        for text, seen in zip(missing, computed, strict=True):
            found[text.number] = seen
            if self.folder is not None:
                self.folder.write(text, seen)
        self._fetched = {
            text.number: found[text.number].since(text.needed(self.window)) for text in texts
        }

    def read_all(self, texts: Sequence[Text]) -> list[Seen]:
        """Return what fetch() got ready."""
        return [self._fetched[text.number] for text in texts]


def _matrix(module: nn.Module | None, target: AnyTarget) -> torch.Tensor:
    """Return the weights of the embedding or of the head, [vocabulary, hidden]."""
    weight = getattr(module, "weight", None)
    shape = (target.shape.vocab_size, target.shape.hidden_size)
    if not isinstance(weight, torch.Tensor) or tuple(weight.shape) != shape:
        found = "none" if weight is None else f"{tuple(weight.shape)}"
        raise ModelError(f"{target.name}: embedding or head of shape {found}; expected {shape}")
    if not weight.is_floating_point():
        raise ModelError(f"{target.name}: embedding or head is stored as {weight.dtype}")
    return weight.detach()


def _weights_of_a_token(layers: nn.ModuleList, config: Any) -> float:
    """Return the weights of the layers' matrices that one token is multiplied by. Of experts,
    which are matrices side by side in one tensor, each token takes a few. A linear layer says
    its sizes itself, since a quantised one packs several weights into a number."""
    text = config.get_text_config()
    experts = next((int(getattr(text, n)) for n in EXPERTS if getattr(text, n, None)), 0)
    taken = next((int(getattr(text, n)) for n in EXPERTS_OF_A_TOKEN if getattr(text, n, None)), 1)
    total = 0.0
    for module in layers.modules():
        if isinstance(module, nn.Linear):
            total += module.in_features * module.out_features
            continue
        for weight in module.parameters(recurse=False):
            of_experts = weight.dim() == 3 and weight.shape[0] == experts
            if weight.dim() >= 2:
                total += weight.numel() * (taken / experts if of_experts else 1.0)
    return total
