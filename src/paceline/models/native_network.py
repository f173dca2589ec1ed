"""NativeNetwork: bfloat16 and int8 on CPU, a whole forward in one call of the fused kernels."""

from __future__ import annotations

import ctypes
from copy import copy

import numpy as np
import torch
from torch import Tensor

from paceline.core import ModelError
from paceline.kernels import abi, build
from paceline.kernels.packing import LANES
from paceline.models.batch import ForwardBatch, ForwardOutput, Part
from paceline.models.config import ModelConfig
from paceline.models.kernel_network import KernelNetwork, address, read_bytes
from paceline.models.packed_weights import layer_shapes, take
from paceline.models.quantized import UNQUANTIZED, Recipe
from paceline.models.tensors import EMBEDDING, FINAL_NORM, HEAD, layer_prefix
from paceline.models.weights import Weights


def native_available(config: ModelConfig | None = None) -> tuple[bool, str]:
    """Return whether NativeNetwork can run (this model) here, and the kernel path or the reason."""
    if config is not None and config.head_dim % LANES:
        return False, f"head_dim {config.head_dim} is no multiple of {LANES}"
    return build.available()


class NativeNetwork(KernelNetwork):
    """Implements `paceline.models.batch.Network` for bfloat16 on CPU, with the linear layers that
    `recipe` names in int8.

    Weights are packed into one copy, and removed from their mapping on the way where it allows
    that. Raises ModelError when the kernels cannot run here or the model does not fit them.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        max_positions: int,
        recipe: Recipe = UNQUANTIZED,
    ) -> None:
        usable, why = native_available(config)
        if not usable:
            raise ModelError(f"native kernels: {why}")
        native = build.load()
        self.config, self.path, self.recipe = config, native.path, recipe
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.num_layers = config.num_layers
        head = (Part.HEAD, config.vocab_size, config.hidden_size)
        shapes = [*layer_shapes(config) * config.num_layers, head]
        super().__init__(native.library, config, shapes, recipe, max_positions)
        self.streamed_parts = dict(self._packer.bytes_by_part)
        self._embedding: Tensor | None = None
        self._pack(weights)
        self.streamed_bytes, self.weight_bytes = self._packer.arena.used, self._packer.bytes

    def leading(self, layers: int) -> NativeNetwork:
        """Return the first layers as a network of its own over the same weights and KV."""
        other = copy(self)
        other.num_layers = layers
        other.structure = abi.Model.from_buffer_copy(self.structure)
        other.structure.layers = layers
        other._structure_ref = ctypes.byref(other.structure)
        other._new_forward()
        return other

    def forward(self, batch: ForwardBatch, feature_layers: tuple[int, ...] = ()) -> ForwardOutput:
        rows, outputs, taps = len(batch.ids), len(batch.logit_rows), len(feature_layers)
        logits = self._buffer("logits", outputs, self.vocab_size)
        argmax = self._buffer("argmax", outputs, dtype=torch.int64)
        finite = self._buffer("finite", outputs, dtype=torch.bool)
        if not rows:
            return ForwardOutput(logits, argmax, finite)
        self._check(batch.positions)
        features = None
        if taps:
            width = taps * self.hidden_size
            features = self._buffer("features", rows, width, dtype=torch.bfloat16)
        tapped = np.array(feature_layers, dtype=np.int32)
        self._batch.taps, self._batch.tap_layers = taps, address(tapped)
        self._run(batch)
        return ForwardOutput(logits, argmax, finite, features)

    def embedding_rows(self, ids: Tensor) -> Tensor:
        if self._embedding is None:
            return self.head_rows(ids)
        return self._embedding.index_select(0, ids)

    def head_rows(self, ids: Tensor) -> Tensor:
        if self.config.tie_word_embeddings and self._embedding is not None:
            return self.embedding_rows(ids)  # what an int8 head was made from
        return self.head.rows(ids)

    def read_weights(self) -> None:
        read_bytes(self.library, self._packer.arena.data[: self.streamed_bytes])

    def _pack(self, weights: Weights) -> None:
        config, packer, structure = self.config, self._packer, self.structure
        for index, layer in enumerate(self._layers):
            packer.layer(layer, config, weights, layer_prefix(index))
        tied = config.tie_word_embeddings
        head = take(weights, EMBEDDING if tied else HEAD)
        # Embeddings are looked up in the head's own copy where that is the same matrix in bf16.
        if not tied or packer.recipe.takes("head"):
            rows = head if tied else take(weights, EMBEDDING)
            self._embedding = packer.keep(rows, torch.bfloat16)
            structure.embedding = self._embedding.data_ptr()
        self.head = packer.matrix(Part.HEAD, head)
        structure.head = self.head.structure
        structure.embedding_panels = structure.head.panels
        structure.final_norm = packer.keep(take(weights, FINAL_NORM)).data_ptr()
