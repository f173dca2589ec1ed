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

    The subclass packs its weights into `_packer`, points `structure` to them (the kernels read it),
    and the `_batch` of each forward to its buffers. Positions of a batch are below `max_positions`.
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
        tables = rope_tables(config.rope, config.head_dim, max_positions)
        cos, sin = (self._packer.keep(table).data_ptr() for table in tables)
        self.structure = abi.Model(
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
            layer=ctypes.cast(self._layers, ctypes.POINTER(abi.Layer)),
            cos=cos,
            sin=sin,
        )
        self._structure_ref = ctypes.byref(self.structure)
        self._kv: Arena | None = None
        self.num_blocks = 0
        self._new_forward()

    def _new_forward(self) -> None:
        """Give the network structures of its own for what a forward fills in."""
        self.library.pl_workspace_create.restype = ctypes.c_void_p
        self._workspace = ctypes.c_void_p(self.library.pl_workspace_create())
        weakref.finalize(self, self.library.pl_workspace_destroy, self._workspace)
        self._batch, self._buffers = abi.Batch(), dict[str, Tensor]()
        self.record(OFF)

    def allocate_kv(self, num_blocks: int) -> None:
        """Per layer, keys [block][kv_head][head_dim / 2][16 tokens][2] and values
        [block][kv_head][8 token pairs][head_dim][2], bf16. Pages are taken as they are written."""
        self._kv = None  # freed first: both might not fit
        config = self._shape
        size = num_blocks * BLOCK_SIZE * config.num_kv_heads * config.head_dim * 2
        self._kv = Arena(2 * config.num_layers * padded(size, PAGE))
        for layer in self._layers:
            layer.k_cache = self._kv.take(size).data_ptr()
            layer.v_cache = self._kv.take(size).data_ptr()
        self.num_blocks = num_blocks

    def record(self, spans: Spans) -> None:
        self._spans, self._parts = spans, forward_parts(self._shape.num_layers)
        self._ticks = (ctypes.c_int64 * (len(self._parts) + 1))()  # when each part ended
        self._batch.ticks = None if spans is OFF else ctypes.addressof(self._ticks)

    def _check(self, positions: np.ndarray) -> None:
        if int(positions.max()) >= self.max_positions:
            raise ValueError(f"position {positions.max()} is past {self.max_positions - 1}")

    def _buffer(
        self, name: str, rows: int, *columns: int, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return [rows, *columns] of a buffer that forwards share, and point `_batch` to it."""
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < rows or buffer.shape[1:] != columns:
            buffer = torch.empty(max(16, padded(rows, 16)), *columns, dtype=dtype)
            self._buffers[name] = buffer
        setattr(self._batch, name, buffer.data_ptr())
        return buffer[:rows]

    def _run(self, batch: ForwardBatch) -> None:
        """Compute the rows of `batch` into the buffers that `_batch` points to."""
        to = self._batch
        to.rows, to.outputs = len(batch.ids), len(batch.logit_rows)
        to.sequences, to.table_stride = len(batch.seq_starts) - 1, batch.block_tables.shape[1]
        to.threads = torch.get_num_threads()
        to.ids, to.positions = address(batch.ids), address(batch.positions)
        to.seq_starts, to.block_tables = address(batch.seq_starts), address(batch.block_tables)
        to.logit_rows = address(batch.logit_rows)
        to.first = None if batch.first is None else address(batch.first)
        if self.library.pl_forward(self._structure_ref, ctypes.byref(to), self._workspace):
            raise MemoryError(f"no memory for a forward of {len(batch.ids)} rows")
        self._spans.parts(self._parts, self._ticks)


def address(array: np.ndarray) -> int:
    if array.dtype != np.int32 or not array.flags.c_contiguous:
        raise TypeError(f"a batch holds contiguous int32 arrays, not {array.dtype}")
    return array.ctypes.data


def read_bytes(library: ctypes.CDLL, data: Tensor) -> None:
    """Read every byte once, with the forward's threads, and do nothing else."""
    at = ctypes.c_void_p(data.data_ptr())
    library.pl_read(at, ctypes.c_int64(data.nbytes), torch.get_num_threads())
