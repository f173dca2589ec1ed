"""TorchNetwork: the network in plain torch, on any device and in any dtype.

It is the twin that the fused kernels are judged by, and the path for CUDA, for float32 and for
machines without a compiler.
"""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from paceline.models.attention import CAUSAL, AttentionPlan
from paceline.models.batch import ForwardBatch, ForwardOutput, Part
from paceline.models.config import ModelConfig
from paceline.models.decoder import DecoderStack
from paceline.models.quantized import UNQUANTIZED, Recipe, make_linear
from paceline.models.tensors import EMBEDDING, FINAL_NORM, HEAD, layer_prefix
from paceline.models.weights import Weights


class TorchNetwork(DecoderStack):
    """Implements `paceline.models.batch.Network`, by default for the model's whole context. For a
    fixed number of threads, a row's logits have the same bits whatever else is in the batch and
    however its prompt was cut into chunks."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        max_positions: int | None = None,
        recipe: Recipe = UNQUANTIZED,
    ) -> None:
        prefixes = [layer_prefix(layer) for layer in range(config.num_layers)]
        positions = max_positions or config.max_context
        place = torch.device(device)
        super().__init__(config, weights, prefixes, place, dtype, positions, recipe)
        self.config, self.num_layers = config, config.num_layers
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size

        def load(name: str) -> Tensor:
            return weights[name].to(self.device, dtype, copy=True)

        self.embedding, self.final_norm = load(EMBEDDING), load(FINAL_NORM)
        head = self.embedding if config.tie_word_embeddings else load(HEAD)
        self.head = make_linear(recipe, Part.HEAD, head)
        self.streamed_parts = self._bytes_by_part()
        self.streamed_bytes = sum(self.streamed_parts.values())
        one_matrix = self.head.weight is self.embedding
        self.weight_bytes = self.streamed_bytes + (0 if one_matrix else self.embedding.nbytes)

    def leading(self, layers: int) -> TorchNetwork:
        """Return the first layers as a network of its own over the same weights and KV."""
        other = copy(self)
        other.num_layers, other.layers = layers, self.layers[:layers]
        return other

    @torch.no_grad()
    def forward(self, batch: ForwardBatch, feature_layers: tuple[int, ...] = ()) -> ForwardOutput:
        if not len(batch.ids):
            empty = torch.empty(0, dtype=torch.int64, device=self.device)
            return ForwardOutput(self._no_logits(), empty, empty.bool())
        plan, angles = self._plan(batch)
        spans, taps = self._spans, {}
        with spans(Part.EMBED):
            x = self.embedding.index_select(0, plan.ids)
        for index, layer in enumerate(self.layers):
            normed = self._norm(x, layer.input_norm)
            x = x + layer.attention(normed, angles, self.kv[index], plan, CAUSAL, spans)
            x = x + layer.mlp(self._norm(x, layer.mlp_norm), spans)
            if index in feature_layers:
                taps[index] = x[: plan.rows]
        features = None
        if feature_layers:
            with spans(Part.TAPS):
                features = torch.cat([taps[i] for i in feature_layers], dim=-1)
        with spans(Part.HEAD):
            logits = self._logits(x, plan, len(batch.logit_rows))
            argmax, finite = logits.argmax(-1), torch.isfinite(logits).all(-1)
        return ForwardOutput(logits, argmax, finite, features)

    def embedding_rows(self, ids: Tensor) -> Tensor:
        return self.embedding.index_select(0, ids.to(self.device))

    def head_rows(self, ids: Tensor) -> Tensor:
        if self.config.tie_word_embeddings:
            return self.embedding_rows(ids)
        return self.head.rows(ids.to(self.device), self.dtype)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        with self._spans(Part.NORM):
            return super()._norm(x, weight)

    def _no_logits(self) -> Tensor:
        return torch.empty((0, self.vocab_size), dtype=torch.float32, device=self.device)

    def _logits(self, x: Tensor, plan: AttentionPlan, outputs: int) -> Tensor:
        if not outputs:
            return self._no_logits()
        normed = self._norm(x.index_select(0, plan.logit_rows), self.final_norm)
        return self.head(normed)[:outputs].float()
