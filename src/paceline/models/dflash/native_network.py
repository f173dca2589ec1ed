"""NativeDFlash: the serving form in bfloat16 on CPU, one call of the fused kernels each for
injecting context and for drafting."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.kernels import abi
from paceline.models.batch import ForwardBatch, Part
from paceline.models.dflash.batch import BlockOutput
from paceline.models.dflash.checkpoint import DFlashCheckpoint
from paceline.models.dflash.config import DFlashConfig
from paceline.models.dflash.module import capped
from paceline.models.dflash.tensors import CONVOLUTIONS, FC, HIDDEN_NORM, NORM, layer_prefix
from paceline.models.native_network import KernelNetwork, NativeNetwork, read_bytes
from paceline.models.packed_weights import PackedMatrix, Packer, Shape, layer_shapes, take
from paceline.models.quantized import Recipe
from paceline.models.weights import Weights

CONTEXT = struct.Struct("@6q")  # the fields of abi.Context, written at once

# The small matrices of convolutions stay in bf16: no recipe names them.


class NativeDFlash(KernelNetwork):
    """Implements `paceline.models.dflash.batch.DFlashNetwork` beside a NativeNetwork, whose packed
    embedding and head it reads in place. Positions of a batch are below `max_positions`."""

    def __init__(
        self,
        checkpoint: DFlashCheckpoint,
        target: NativeNetwork,
        max_positions: int,
        head_ids: Tensor | None,
        recipe: Recipe,
    ) -> None:
        self.config = config = checkpoint.config
        self.head_ids, self.dtype, self._target = head_ids, torch.bfloat16, target
        shapes = _matrix_shapes(config, head_ids)
        super().__init__(target.library, config.layers, shapes, recipe, max_positions)
        self._head_array = None if head_ids is None else head_ids.numpy()
        self._context = abi.Context()
        self._make_room(config.max_draft_len)
        self._pack(checkpoint.weights)
        self._share(checkpoint.mask_embedding)
        self.weight_bytes = self._packer.bytes
        # A draft reads all but the projection of features, and the target's head if it shares it.
        self.streamed_parts = dict(self._packer.bytes_by_part)
        self._context_bytes = self.streamed_parts.pop(Part.CONTEXT)
        if head_ids is None:
            self.streamed_parts[Part.HEAD] = target.head.packed.nbytes
        self.streamed_bytes = sum(self.streamed_parts.values())

    def inject(self, features: Tensor, positions: Sequence[int], slots: Sequence[int]) -> None:
        self._check_last(max(positions))
        rows = len(positions)
        if features.dtype != torch.bfloat16 or features.stride(1) != 1:
            features = features.to(torch.bfloat16).contiguous()
        places = np.array([*positions, *slots], dtype=np.int32)
        at = places.ctypes.data
        sizes = rows, features.stride(0), torch.get_num_threads()
        addresses = features.data_ptr(), at, at + rows * places.itemsize
        CONTEXT.pack_into(self._context, 0, *sizes, *addresses)
        context = ctypes.byref(self._context)
        if self.library.pl_inject(self._structure_ref, context, self._workspace):
            raise MemoryError(f"no memory to inject {rows} rows")

    def draft(self, batch: ForwardBatch, *, logits: bool = False) -> BlockOutput:
        self._check(batch.positions, batch.block_tables.shape[1])
        outputs, softcap = len(batch.logit_rows), self.config.softcap
        later = 1.0 if self.config.second is None else self.config.output_multiplier
        processed = softcap is not None or later != 1.0
        if outputs > len(self._argmax):
            self._make_room(outputs)
        self._batch.logits = scores = hidden = None
        if logits or processed:
            scores = self._buffer("logits", outputs, self.structure.vocab)
        if self.config.second is not None:
            size = self.structure.hidden
            hidden = self._buffer("hidden", outputs, size, dtype=torch.bfloat16)
        self._run(batch)
        columns, confidence = self._argmax[:outputs], self._confidence[:outputs].tolist()
        if scores is not None and processed:
            scores = capped(scores * later, softcap)
            confidence = torch.exp(scores.amax(-1) - scores.logsumexp(-1)).tolist()
        ids = columns if self._head_array is None else self._head_array[columns]
        return BlockOutput(
            argmax=ids.tolist(),
            confidence=confidence,
            logits=scores if logits else None,
            hidden=hidden,
        )

    def _make_room(self, outputs: int) -> None:
        """Let the kernels write the drafts of so many slots. To read them from numpy takes a
        fraction of what it takes to read tensors."""
        self._argmax = self._buffer("argmax", outputs, dtype=torch.int64).numpy()
        self._confidence = self._buffer("confidence", outputs).numpy()

    def read_weights(self) -> None:
        arena = self._packer.arena
        read_bytes(self.library, arena.data[self._context_bytes : arena.used])
        if self.head_ids is None:
            read_bytes(self.library, self._target.head.packed.view(torch.uint8))

    def _pack(self, weights: Weights) -> None:
        config, packer, structure = self.config, self._packer, self.structure
        # First: a draft does not read it.
        structure.context = _packed(packer, Part.CONTEXT, take(weights, FC)).structure
        structure.context_norm = packer.keep(take(weights, HIDDEN_NORM)).data_ptr()
        for index, (layer, kind) in enumerate(zip(self._layers, config.attention, strict=True)):
            packer.layer(layer, config.layers, weights, layer_prefix(index))
            layer.window, layer.bidirectional = kind.window or 0, not kind.causal
            if config.second is not None:
                layer.attention_convolution, layer.mlp_convolution = (
                    self._convolution(weights, layer_prefix(index) + name) for name in CONVOLUTIONS
                )
        if config.second is not None:
            structure.taps = config.second.kernel_size
            structure.groups = config.layers.hidden_size // config.second.group_size
        # The head is linear: what scales its output may as well scale its input. But not where
        # the selector reads the input too: then draft() scales the logits, which it needs anyway.
        scale = config.output_multiplier if config.second is None else 1.0
        structure.final_norm = packer.keep(take(weights, NORM) * scale).data_ptr()

    def _share(self, mask_embedding: Tensor | None) -> None:
        """Point the kernels to the target's embedding and head, or to the cut head's rows of it."""
        theirs, ours = self._target.structure, self.structure
        ours.embedding, ours.embedding_panels = theirs.embedding, theirs.embedding_panels
        ours.embedding_scale = self.config.embedding_scale
        if mask_embedding is not None:
            ours.mask_id = self.config.mask_token_id
            ours.mask_row = self._packer.keep(mask_embedding).data_ptr()
        if self.head_ids is None:
            ours.head = theirs.head
            return
        rows = self._target.head_rows(self.head_ids)
        ours.head, ours.vocab = _packed(self._packer, Part.HEAD, rows).structure, len(rows)

    def _convolution(self, weights: Weights, prefix: str) -> abi.Convolution:
        projection = take(weights, f"{prefix}.kernel_projection.weight")
        base = self._packer.keep(take(weights, f"{prefix}.base_kernel"))
        kernels = _packed(self._packer, Part.CONVOLUTION, projection)
        return abi.Convolution(kernels.structure, base.data_ptr())


def _matrix_shapes(config: DFlashConfig, head_ids: Tensor | None) -> list[Shape]:
    hidden, second = config.layers.hidden_size, config.second
    layer = layer_shapes(config.layers)
    if second is not None:
        width = 2 * second.kernel_size * hidden // second.group_size
        layer += [(Part.CONVOLUTION, width, hidden)] * 2
    head = [] if head_ids is None else [("head", len(head_ids), hidden)]
    return [("context", hidden, config.feature_size), *layer * config.layers.num_layers, *head]


def _packed(packer: Packer, linear: str, weight: Tensor) -> PackedMatrix:
    n, k = weight.shape
    return packer.matrix(linear, n, k, lambda: weight)
