"""The base of networks on the fused kernels: packed weights, KV, a forward's structures."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.core import KVSpec
from paceline.core.spans import OFF, Spans
from paceline.kernels import abi
from paceline.kernels.packing import PAGE, Arena, padded
from paceline.models.batch import BLOCK_SIZE, ForwardBatch, forward_parts
from paceline.models.config import ModelConfig
from paceline.models.packed_weights import Packer, Shape
from paceline.models.quantized import Recipe
from paceline.models.rope import rope_tables


class KernelNetwork:
    """A decoder stack of `config` on the kernels of `library`, whose matrices have these `shapes`.

    The subclass packs its weights into `_packer`, points `_model` to them, and the `_batch` of each
    forward to its buffers. Positions of a batch are below `max_positions`.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        config: ModelConfig,
        shapes: Sequence[Shape],
        recipe: Recipe,
        max_positions: int,
    ) -> None:
        self.library, self.device, self.max_positions = library, torch.device("cpu"), max_positions
        self.kv_spec = KVSpec(config.num_layers, config.num_kv_heads, config.head_dim, 2)
        self._shape, self._layers = config, (abi.Layer * config.num_layers)()
        self._packer = Packer(library, shapes, recipe)
        self._model = model_structure(config, self._layers)
        self._model_ref = ctypes.byref(self._model)
        cos, sin = rope_tables(config.rope, config.head_dim, max_positions)
        self._model.cos = self._packer.keep(cos).data_ptr()
        self._model.sin = self._packer.keep(sin).data_ptr()
        self._kv: Arena | None = None
        self.num_blocks = 0
        self._new_forward()

    def _new_forward(self) -> None:
        """Give the network structures of its own for what a forward fills in."""
        self._workspace, self._batch = Workspace(self.library), abi.Batch()
        self.record(OFF)

    def allocate_kv(self, num_blocks: int) -> None:
        """Allocate zeroed KV for `num_blocks` blocks, in place of any before."""
        self._kv = None  # freed first: both might not fit
        self._kv = allocate_native_kv(self._shape, self._layers, num_blocks)
        self.num_blocks = num_blocks

    def record(self, spans: Spans) -> None:
        """Let every forward from now on tell `spans` what its parts took, within the open span."""
        self._ticks = Ticks(spans, self._shape.num_layers, self._batch)

    def _check(self, positions: np.ndarray) -> None:
        if int(positions.max()) >= self.max_positions:
            raise ValueError(f"position {positions.max()} is past {self.max_positions - 1}")

    def _run(self, batch: ForwardBatch) -> None:
        """Compute the rows of `batch` into the buffers that `_batch` points to."""
        fill_batch(self._batch, batch)
        if self.library.pl_forward(
            self._model_ref, ctypes.byref(self._batch), self._workspace.handle
        ):
            raise MemoryError(f"no memory for a forward of {len(batch.ids)} rows")
        self._ticks.tell()


def model_structure(config: ModelConfig, layers: ctypes.Array[abi.Layer]) -> abi.Model:
    """Return the kernels' model with its shape filled in; weights are still to come."""
    return abi.Model(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        layers=config.num_layers,
        vocab=config.vocab_size,
        rotary_half=config.head_dim // 2,
        epsilon=config.rms_norm_eps,
        scale=config.head_dim**-0.5,
        embedding_scale=1.0,
        layer=ctypes.cast(layers, ctypes.POINTER(abi.Layer)),
    )


def allocate_native_kv(
    config: ModelConfig, layers: ctypes.Array[abi.Layer], num_blocks: int
) -> Arena:
    """Allocate zeroed KV for `num_blocks` blocks of BLOCK_SIZE tokens, and point layers to it.

    Per layer, keys [block][kv_head][head_dim / 2][16 tokens][2] and values
    [block][kv_head][8 token pairs][head_dim][2], bf16. Pages are taken as they are written.
    """
    size = num_blocks * BLOCK_SIZE * config.num_kv_heads * config.head_dim * 2
    kv = Arena(2 * config.num_layers * padded(size, PAGE))
    for layer in layers:
        layer.k_cache = kv.take(size).data_ptr()
        layer.v_cache = kv.take(size).data_ptr()
    return kv


def fill_batch(to: abi.Batch, batch: ForwardBatch) -> None:
    """Point the kernels' batch at the rows of `batch`, which must outlive the call."""
    to.rows, to.sequences, to.outputs = (
        len(batch.ids),
        len(batch.seq_starts) - 1,
        len(batch.logit_rows),
    )
    to.table_stride, to.threads = batch.block_tables.shape[1], torch.get_num_threads()
    to.ids, to.positions = address(batch.ids), address(batch.positions)
    to.seq_starts, to.block_tables = address(batch.seq_starts), address(batch.block_tables)
    to.logit_rows = address(batch.logit_rows)
    to.first = None if batch.first is None else address(batch.first)


def address(array: np.ndarray) -> int:
    if array.dtype != np.int32 or not array.flags.c_contiguous:
        raise TypeError(f"a batch holds contiguous int32 arrays, not {array.dtype}")
    return array.ctypes.data


def read_bytes(library: ctypes.CDLL, data: Tensor) -> None:
    """Read every byte once, with the forward's threads, and do nothing else."""
    at = ctypes.c_void_p(data.data_ptr())
    library.pl_read(at, ctypes.c_int64(data.nbytes), torch.get_num_threads())


class Ticks:
    """The times at which the parts of a forward of `batch` ended. The kernels write them down only
    where `spans` keeps them."""

    def __init__(self, spans: Spans, layers: int, batch: abi.Batch) -> None:
        self._spans, self._parts = spans, forward_parts(layers)
        self._ticks = (ctypes.c_int64 * (len(self._parts) + 1))()
        batch.ticks = None if spans is OFF else ctypes.addressof(self._ticks)

    def tell(self) -> None:
        """Pass on the times of the forward that has just run."""
        self._spans.parts(self._parts, self._ticks)


class Workspace:
    """Buffers that the calls of one network share."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.pl_workspace_create.restype = ctypes.c_void_p
        self.handle = ctypes.c_void_p(library.pl_workspace_create())
        weakref.finalize(self, library.pl_workspace_destroy, self.handle)
