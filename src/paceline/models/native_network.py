"""NativeNetwork: bfloat16 and int8 on CPU, a whole forward in one call of the fused kernels."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from paceline.core import KVSpec, ModelError
from paceline.core.spans import OFF, Spans
from paceline.kernels import abi, build
from paceline.kernels.packing import LANES, Arena, padded
from paceline.models.batch import ForwardBatch, ForwardOutput
from paceline.models.config import ModelConfig
from paceline.models.native_parts import (
    Packer,
    Ticks,
    Weights,
    Workspace,
    address,
    allocate_native_kv,
    fill_batch,
    layer_shapes,
    model_structure,
    read_bytes,
    streamed_by_part,
    take,
)
from paceline.models.recipe import UNQUANTIZED, Recipe
from paceline.models.rope import rope_tables
from paceline.models.tensors import EMBEDDING, FINAL_NORM, HEAD, layer_prefix


def native_available(config: ModelConfig | None = None) -> tuple[bool, str]:
    """Whether NativeNetwork can run (this model) here, and the kernel path or why not."""
    if config is not None and config.head_dim % LANES:
        return False, f"head_dim {config.head_dim} is no multiple of {LANES}"
    return build.available()


class NativeNetwork:
    """Implements `paceline.models.batch.Network` for bfloat16 on CPU, with the linear layers that
    `recipe` names in int8.

    `weights` maps Hugging Face names to tensors; they are packed into one copy, and removed from
    the mapping on the way where it allows that. Positions of a batch are below `max_positions`.
    Raises ModelError when the kernels cannot run here or the model does not fit them.
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
        self.config, self.device, self.path = config, torch.device("cpu"), native.path
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.num_layers, self.max_positions = config.num_layers, max_positions
        self.kv_spec = KVSpec(config.num_layers, config.num_kv_heads, config.head_dim, 2)
        self.library = native.library
        self._layers = (abi.Layer * config.num_layers)()
        head = ("head", config.vocab_size, config.hidden_size)
        self.recipe = recipe
        shapes = [*layer_shapes(config) * config.num_layers, head]
        self._packer = Packer(native.library, shapes, recipe)
        self.streamed_parts = streamed_by_part(shapes, recipe)
        self._embedding: torch.Tensor | None = None
        self._model = self._pack(weights)
        self.streamed_bytes, self.weight_bytes = self._packer.arena.used, self._packer.bytes
        self._workspace = Workspace(native.library)
        self._batch = abi.Batch()
        self.record(OFF)
        self._logits = torch.empty(0, config.vocab_size)
        self._argmax = torch.empty(0, dtype=torch.int64)
        self._finite = torch.empty(0, dtype=torch.bool)
        self._features = torch.empty(0, dtype=torch.bfloat16)
        self._kv: Arena | None = None
        self.num_blocks = 0

    def allocate_kv(self, num_blocks: int) -> None:
        """Allocates zeroed KV for `num_blocks` blocks, in place of any before."""
        self._kv = None  # freed first: both might not fit
        self._kv = allocate_native_kv(self.config, self._layers, num_blocks)
        self.num_blocks = num_blocks

    def forward(self, batch: ForwardBatch, feature_layers: tuple[int, ...] = ()) -> ForwardOutput:
        """Computes all rows, writes their KV, returns logits of the rows asked for.

        Feature l (bf16) is the residual stream after layer l, before the final norm. The tensors
        returned are views of buffers that the next forward overwrites.
        """
        rows, outputs = len(batch.ids), len(batch.logit_rows)
        if not rows:
            return ForwardOutput(self._logits[:0], self._argmax[:0], self._finite[:0])
        if int(batch.positions.max()) >= self.max_positions:
            raise ValueError(f"position {batch.positions.max()} is past {self.max_positions - 1}")
        self._reserve(rows, outputs, len(feature_layers))
        taps = np.array(feature_layers, dtype=np.int32)
        to = self._batch
        fill_batch(to, batch)
        to.taps, to.tap_layers = len(taps), address(taps)
        if self.library.pl_forward(self._model_ref, self._batch_ref, self._workspace.handle):
            raise MemoryError(f"no memory for a forward of {rows} rows")
        self._ticks.tell()
        features = None
        if len(taps):
            width = len(taps) * self.hidden_size
            features = self._features[: rows * width].view(rows, width)
        return ForwardOutput(
            self._logits[:outputs], self._argmax[:outputs], self._finite[:outputs], features
        )

    def record(self, spans: Spans) -> None:
        """Every forward from now on tells `spans` what its parts took, within the open span."""
        self._ticks = Ticks(spans, self.num_layers, self._batch)

    def embedding_rows(self, ids: torch.Tensor) -> torch.Tensor:
        if self._embedding is None:
            return self.head_rows(ids)
        return self._embedding.index_select(0, ids)

    def head_rows(self, ids: torch.Tensor) -> torch.Tensor:
        if self.config.tie_word_embeddings and self._embedding is not None:
            return self.embedding_rows(ids)  # what an int8 head was made from
        return self._head.rows(ids)

    def read_weights(self) -> None:
        """Reads the packed weights once, with the forward's threads, and does nothing else."""
        read_bytes(self.library, self._packer.arena.data[: self.streamed_bytes])

    def read_head(self) -> None:
        """The same for the head alone, which a drafter may share."""
        read_bytes(self.library, self._head.room.view(torch.uint8))

    @property
    def head_bytes(self) -> int:
        return self._head.room.nbytes

    @property
    def structure(self) -> abi.Model:
        """What the kernels read: valid for as long as this network lives."""
        return self._model

    def _reserve(self, rows: int, outputs: int, taps: int) -> None:
        if outputs > len(self._logits):
            capacity = max(16, padded(outputs, 16))
            self._logits = torch.empty(capacity, self.vocab_size)
            self._argmax = torch.empty(capacity, dtype=torch.int64)
            self._finite = torch.empty(capacity, dtype=torch.bool)
        if rows * taps * self.hidden_size > len(self._features):
            self._features = torch.empty(rows * taps * self.hidden_size, dtype=torch.bfloat16)
        to = self._batch
        to.logits, to.argmax = self._logits.data_ptr(), self._argmax.data_ptr()
        to.finite = self._finite.data_ptr()
        to.features = self._features.data_ptr()
        self._batch_ref = ctypes.byref(to)

    # -- packing --------------------------------------------------------------------------------

    def _pack(self, weights: Weights) -> abi.Model:
        config, packer = self.config, self._packer
        for index, layer in enumerate(self._layers):
            packer.layer(layer, config, weights, layer_prefix(index))
        model = model_structure(config, self._layers)
        tied = config.tie_word_embeddings
        head = take(weights, EMBEDDING if tied else HEAD)
        # Embeddings are looked up in the head's own copy where that is the same matrix in bf16.
        if not tied or packer.recipe.takes("head"):
            rows = head if tied else take(weights, EMBEDDING)
            self._embedding = packer.keep(rows, torch.bfloat16)
            model.embedding = self._embedding.data_ptr()
        self._head = packer.matrix("head", [head])
        model.head = self._head.structure
        model.embedding_panels = model.head.panels
        model.final_norm = packer.keep(take(weights, FINAL_NORM)).data_ptr()
        cos, sin = rope_tables(config, self.max_positions)
        model.cos, model.sin = packer.keep(cos).data_ptr(), packer.keep(sin).data_ptr()
        self._model_ref = ctypes.byref(model)
        return model
