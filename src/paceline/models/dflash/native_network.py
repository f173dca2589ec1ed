"""NativeDFlash: the serving form in bfloat16 on CPU, one call of the fused kernels each for
injecting context and for drafting."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from paceline.core import KVSpec
from paceline.core.spans import OFF, Spans
from paceline.kernels import abi
from paceline.kernels.packing import Arena, padded
from paceline.models.batch import ForwardBatch
from paceline.models.dflash.batch import BlockOutput
from paceline.models.dflash.config import DFlashConfig
from paceline.models.dflash.module import capped
from paceline.models.dflash.tensors import CONVOLUTIONS, FC, HIDDEN_NORM, NORM, layer_prefix
from paceline.models.native_network import NativeNetwork
from paceline.models.native_parts import (
    Packer,
    Shape,
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
from paceline.models.parts import CONVOLUTION, HEAD
from paceline.models.recipe import UNQUANTIZED, Recipe
from paceline.models.rope import rope_tables

# The small matrices of convolutions stay in bf16: no recipe names them.


class NativeDFlash:
    """Implements `paceline.models.dflash.batch.DFlashNetwork` beside a NativeNetwork, whose packed
    embedding and head it reads in place. `weights` maps the checkpoint's names to tensors.
    Positions of a batch are below `max_positions`."""

    def __init__(
        self,
        config: DFlashConfig,
        weights: Weights,
        target: NativeNetwork,
        *,
        max_positions: int,
        head_ids: torch.Tensor | None = None,
        mask_embedding: torch.Tensor | None = None,
        recipe: Recipe = UNQUANTIZED,
    ) -> None:
        shape = config.layers
        self.config, self.head_ids, self.max_positions = config, head_ids, max_positions
        self.device, self.dtype = target.device, torch.bfloat16
        self.kv_spec = KVSpec(shape.num_layers, shape.num_kv_heads, shape.head_dim, 2)
        self.library, self._target = target.library, target
        self._layers = (abi.Layer * shape.num_layers)()
        shapes = _matrix_shapes(config, head_ids)
        self._packer = Packer(target.library, shapes, recipe)
        self._model = self._pack(weights, mask_embedding)
        self.weight_bytes = self._packer.bytes
        # A draft reads all but the projection of features, and the target's head if it shares it.
        self.streamed_parts = streamed_by_part(shapes[1:], recipe)
        if head_ids is None:
            self.streamed_parts[HEAD] = target.head_bytes
        self.streamed_bytes = sum(self.streamed_parts.values())
        self._workspace = Workspace(target.library)
        self._batch = abi.Batch()
        self.record(OFF)
        self._argmax = torch.empty(0, dtype=torch.int64)
        self._confidence = torch.empty(0)
        self._logits = torch.empty(0, self._model.vocab)
        self._hidden = torch.empty(0, shape.hidden_size, dtype=torch.bfloat16)
        self._kv: Arena | None = None

    def allocate_kv(self, num_blocks: int) -> None:
        self._kv = None  # freed first: both might not fit
        self._kv = allocate_native_kv(self.config.layers, self._layers, num_blocks)

    def inject(self, features: torch.Tensor, positions: np.ndarray, slots: np.ndarray) -> None:
        self._check(positions)
        features = features.to(torch.bfloat16)
        if features.stride(1) != 1:
            features = features.contiguous()
        context = abi.Context(
            rows=len(positions),
            stride=features.stride(0),
            threads=torch.get_num_threads(),
            features=features.data_ptr(),
            positions=address(positions),
            slots=address(slots),
        )
        if self.library.pl_inject(
            ctypes.byref(self._model), ctypes.byref(context), self._workspace.handle
        ):
            raise MemoryError(f"no memory to inject {len(positions)} rows")

    def draft(self, batch: ForwardBatch, *, logits: bool = False) -> BlockOutput:
        self._check(batch.positions)
        outputs = len(batch.logit_rows)
        later = 1.0 if self.config.second is None else self.config.output_multiplier
        processed = self.config.softcap is not None or later != 1.0
        self._reserve(outputs, logits or processed)
        fill_batch(self._batch, batch)
        if self.library.pl_forward(
            ctypes.byref(self._model), ctypes.byref(self._batch), self._workspace.handle
        ):
            raise MemoryError(f"no memory for a draft of {len(batch.ids)} rows")
        self._ticks.tell()
        argmax, confidence = self._argmax[:outputs], self._confidence[:outputs]
        scores = self._logits[:outputs]
        if processed:
            scores = capped(scores * later, self.config.softcap)
            confidence = torch.exp(scores.amax(-1) - scores.logsumexp(-1))
        return BlockOutput(
            argmax=argmax if self.head_ids is None else self.head_ids[argmax],
            confidence=confidence,
            logits=scores if logits else None,
            hidden=self._hidden[:outputs] if self.config.second is not None else None,
        )

    def record(self, spans: Spans) -> None:
        self._ticks = Ticks(spans, self.config.layers.num_layers, self._batch)

    def read_weights(self) -> None:
        """Reads layers and head once, with the forward's threads, and does nothing else."""
        arena = self._packer.arena
        read_bytes(self.library, arena.data[self._context_bytes : arena.used])
        if self.head_ids is None:
            self._target.read_head()

    # -- inside -----------------------------------------------------------------------------------

    def _check(self, positions: np.ndarray) -> None:
        if int(positions.max()) >= self.max_positions:
            raise ValueError(f"position {positions.max()} is past {self.max_positions - 1}")

    def _reserve(self, outputs: int, logits: bool) -> None:
        capacity = max(16, padded(outputs, 16))
        if outputs > len(self._argmax):
            self._argmax = torch.empty(capacity, dtype=torch.int64)
            self._confidence = torch.empty(capacity)
            self._hidden = torch.empty(capacity, self._hidden.shape[1], dtype=torch.bfloat16)
        if logits and outputs > len(self._logits):
            self._logits = torch.empty(capacity, self._logits.shape[1])
        to = self._batch
        to.argmax, to.confidence = self._argmax.data_ptr(), self._confidence.data_ptr()
        to.logits = self._logits.data_ptr() if logits else None
        to.hidden = self._hidden.data_ptr() if self.config.second is not None else None

    def _pack(self, weights: Weights, mask_embedding: torch.Tensor | None) -> abi.Model:
        config, packer = self.config, self._packer
        model = model_structure(config.layers, self._layers)
        # First: a draft does not read it.
        model.context = packer.matrix("context", [take(weights, FC)]).structure
        self._context_bytes = packer.arena.used
        model.context_norm = packer.keep(take(weights, HIDDEN_NORM)).data_ptr()
        for index, (layer, kind) in enumerate(zip(self._layers, config.attention, strict=True)):
            packer.layer(layer, config.layers, weights, layer_prefix(index))
            layer.window, layer.bidirectional = kind.window or 0, not kind.causal
            if config.second is not None:
                layer.attention_convolution, layer.mlp_convolution = (
                    self._convolution(weights, layer_prefix(index) + name) for name in CONVOLUTIONS
                )
        if config.second is not None:
            model.taps = config.second.kernel_size
            model.groups = config.layers.hidden_size // config.second.group_size
        self._share(model, mask_embedding)
        # The head is linear: what scales its output may as well scale its input. But not where
        # the selector reads the input too: then draft() scales the logits, which it needs anyway.
        scale = config.output_multiplier if config.second is None else 1.0
        model.final_norm = packer.keep(take(weights, NORM) * scale).data_ptr()
        cos, sin = rope_tables(config.layers, self.max_positions)
        model.cos, model.sin = packer.keep(cos).data_ptr(), packer.keep(sin).data_ptr()
        return model

    def _share(self, model: abi.Model, mask_embedding: torch.Tensor | None) -> None:
        """The target's embedding and head, or the cut head's rows of it."""
        theirs = self._target.structure
        model.embedding, model.embedding_panels = theirs.embedding, theirs.embedding_panels
        model.embedding_scale = self.config.embedding_scale
        if mask_embedding is not None:
            model.mask_id = self.config.mask_token_id
            model.mask_row = self._packer.keep(mask_embedding).data_ptr()
        if self.head_ids is None:
            model.head = theirs.head
            return
        model.head = self._packer.matrix("head", [self._target.head_rows(self.head_ids)]).structure
        model.vocab = len(self.head_ids)

    def _convolution(self, weights: Weights, prefix: str) -> abi.Convolution:
        projection = take(weights, f"{prefix}.kernel_projection.weight")
        base = self._packer.keep(take(weights, f"{prefix}.base_kernel"))
        kernels = self._packer.matrix(CONVOLUTION, [projection])
        return abi.Convolution(kernels.structure, base.data_ptr())


def _matrix_shapes(config: DFlashConfig, head_ids: torch.Tensor | None) -> list[Shape]:
    hidden, second = config.layers.hidden_size, config.second
    layer = layer_shapes(config.layers)
    if second is not None:
        width = 2 * second.kernel_size * hidden // second.group_size
        layer += [(CONVOLUTION, width, hidden)] * 2
    head = [] if head_ids is None else [("head", len(head_ids), hidden)]
    return [("context", hidden, config.feature_size), *layer * config.layers.num_layers, *head]
