"""Networks on the fused kernels: bfloat16 and int8 on CPU, a whole forward in one call."""

from __future__ import annotations

import ctypes
import struct
import weakref
from array import array
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial

import numpy as np
import torch
from torch import Tensor

from paceline.core import KVSpec, ModelError
from paceline.core.spans import OFF, Spans
from paceline.kernels import abi, build
from paceline.kernels.packing import HUGE_PAGE, LANES, PAGE, Arena, padded
from paceline.models.batch import BLOCK_SIZE, ForwardBatch, ForwardOutput, Part, forward_parts
from paceline.models.config import ModelConfig
from paceline.models.packed_weights import Packer, Shape, layer_shapes, take
from paceline.models.quantized import UNQUANTIZED, Recipe
from paceline.models.rope import rope_tables
from paceline.models.tensors import EMBEDDING, FINAL_NORM, HEAD, layer_prefix
from paceline.models.weights import SafetensorWeights, Weights

# The first fields of abi.Batch, up to tap_layers. To write them at once takes a tenth of what it
# takes to write them one by one.
BATCH_HEAD = struct.Struct("@13q")
MOST_OUTPUTS = 256  # shapes of outputs whose views are kept


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
        key: Mapping[str, object] | None = None,
    ) -> None:
        self.library, self.device, self.max_positions = library, torch.device("cpu"), max_positions
        self.kv_spec = KVSpec(config.num_layers, config.num_kv_heads, config.head_dim, 2)
        self._shape, self._layers = config, (abi.Layer * config.num_layers)()
        self._packer, self.number = Packer(library, shapes, recipe, key), recipe.number
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
        self._batch_ref = ctypes.byref(self._batch)
        # Views of the buffers, by the rows of the head, whether they have logits, the rows of
        # features, and the tapped layers.
        self._outputs = dict[tuple[int, bool, int, tuple[int, ...]], ForwardOutput]()
        self.record(OFF)

    def allocate_kv(self, num_blocks: int) -> None:
        """Per layer bf16 [block][kv_head]: keys [head_dim / 2][16 tokens][2] and then values
        [8 token pairs][head_dim][2].

        Pages are taken as they are written. To take a huge one can last 2 ms, so each layer begins
        elsewhere in such a page: else one step would come to a new page in every layer.
        """
        self._kv = None  # freed first: both might not fit
        layers, huge = self._shape.num_layers, HUGE_PAGE
        stride = padded(num_blocks * self._block_bytes, huge) + padded(huge // layers, PAGE)
        self._kv = Arena(layers * stride)
        first = self._kv.take(layers * stride).data_ptr()
        for index, layer in enumerate(self._layers):
            layer.kv = first + index * stride
        self.num_blocks = num_blocks

    @property
    def _block_bytes(self) -> int:
        """Return the bytes of a layer's keys and values in one block."""
        return 2 * BLOCK_SIZE * self._shape.num_kv_heads * self._shape.head_dim * 2

    def clear_kv(self, num_blocks: int) -> None:
        for layer in self._layers:
            ctypes.memset(layer.kv, 0, min(num_blocks, self.num_blocks) * self._block_bytes)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        if not all(0 <= block < self.num_blocks for block in (*sources, *targets)):
            raise IndexError(f"blocks are below {self.num_blocks}, not {[*sources, *targets]}")
        pairs = array("q", sources), array("q", targets)
        addresses = [ctypes.c_void_p(pair.buffer_info()[0]) for pair in pairs]
        count, threads = ctypes.c_int64(len(sources)), ctypes.c_int64(torch.get_num_threads())
        self.library.pl_copy_blocks(self._structure_ref, *addresses, count, threads)

    def record(self, spans: Spans) -> None:
        self._spans, self._parts = spans, forward_parts(self._shape.num_layers)
        self._ticks = (ctypes.c_int64 * (len(self._parts) + 1))()  # when each part ended
        self._batch.ticks = None if spans is OFF else ctypes.addressof(self._ticks)

    def _check(self, positions: np.ndarray, blocks: int | None = None) -> None:
        """Raises ValueError for a position without a rotary embedding. There is none to look for
        where all lie in `blocks` blocks that end before."""
        if blocks is not None and blocks * BLOCK_SIZE <= self.max_positions:
            return
        self._check_last(int(positions.max()))

    def _check_last(self, last: int) -> None:
        if last >= self.max_positions:
            raise ValueError(f"position {last} is past {self.max_positions - 1}")

    def _buffer(
        self, name: str, rows: int, *columns: int, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return [rows, *columns] of a buffer that forwards share, and point `_batch` to it."""
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < rows or buffer.shape[1:] != columns:
            buffer = torch.empty(max(16, padded(rows, 16)), *columns, dtype=dtype)
            self._buffers[name] = buffer
            self._outputs.clear()  # they are views of what was in its place
        setattr(self._batch, name, buffer.data_ptr())
        return buffer[:rows]

    def _run(self, batch: ForwardBatch, taps: int = 0, tap_layers: int = 0) -> None:
        """Compute the rows of `batch` into the buffers that `_batch` points to, and tap so many
        layers, whose numbers are at the address `tap_layers`."""
        tables, addresses = batch.block_tables, batch.addresses
        stride = tables.strides[0] // tables.itemsize
        if addresses is None:
            arrays = batch.ids, batch.positions, batch.seq_starts, tables, batch.logit_rows
            addresses, stride = tuple(map(address, arrays)), tables.shape[1]
        rows, outputs, sequences = len(batch.ids), len(batch.logit_rows), len(batch.seq_starts) - 1
        first = 0 if batch.first is None else address(batch.first)
        sizes = rows, sequences, outputs, stride, taps, torch.get_num_threads()
        BATCH_HEAD.pack_into(self._batch, 0, *sizes, *addresses, first, tap_layers)
        if batch.share_starts is not None and batch.sharers is not None:
            self._batch.share_starts = address(batch.share_starts)
            self._batch.sharers = address(batch.sharers)
        elif self._batch.share_starts is not None:
            self._batch.share_starts = self._batch.sharers = None
        if self.library.pl_forward(self._structure_ref, self._batch_ref, self._workspace):
            raise MemoryError(f"no memory for a forward of {rows} rows")
        self._spans.parts(self._parts, self._ticks)


def address(array: np.ndarray) -> int:
    if array.dtype != np.int32 or not array.flags.c_contiguous:
        raise TypeError(f"a batch holds contiguous int32 arrays, not {array.dtype}")
    return array.ctypes.data


def read_bytes(library: ctypes.CDLL, data: Tensor) -> None:
    """Read every byte once, with the forward's threads, and do nothing else."""
    at = ctypes.c_void_p(data.data_ptr())
    library.pl_read(at, ctypes.c_int64(data.nbytes), torch.get_num_threads())


def native_available(config: ModelConfig | None = None) -> tuple[bool, str]:
    """Return whether NativeNetwork can run (this model) here, and the kernel path or the reason."""
    if config is not None and config.head_dim % LANES:
        return False, f"head_dim {config.head_dim} is no multiple of {LANES}"
    return build.available()


class NativeNetwork(KernelNetwork):
    """Implements `paceline.models.batch.Network` for bfloat16 on CPU, with the linear layers that
    `recipe` names in int8.

    Weights are packed into one copy, and removed from their mapping where it allows that. Raises
    ModelError when the kernels cannot run here or the model does not fit them.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        max_positions: int,
        recipe: Recipe = UNQUANTIZED,
        stored: SafetensorWeights | None = None,
    ) -> None:
        """`stored` are the files that `weights` come from: packed weights are kept for the next
        start with the same files. None: they are not kept."""
        usable, why = native_available(config)
        if not usable:
            raise ModelError(f"native kernels: {why}")
        native = build.load()
        self.config, self.path, self.recipe = config, native.path, recipe
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.num_layers = config.num_layers
        head = (Part.HEAD, config.vocab_size, config.hidden_size)
        shapes = [*layer_shapes(config) * config.num_layers, head]
        stated = {"config": repr(config), "recipe": [recipe.number, *sorted(recipe.linears)]}
        key = None
        if stored is not None:
            key = {**stated, "path": self.path, "weights": stored.fingerprint()}
        super().__init__(native.library, config, shapes, recipe, max_positions, key)
        self.streamed_parts = dict(self._packer.bytes_by_part)
        self._embedding: Tensor | None = None
        self._tapped: dict[tuple[int, ...], tuple[int, np.ndarray]] = {}  # with their addresses
        self._pack(weights)
        self._packer.finish(keep=stored is None or stored.untouched())
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
        rows, outputs = len(batch.ids), len(batch.logit_rows)
        shape = outputs, batch.logits, rows if feature_layers else 0, feature_layers
        output = self._outputs.get(shape) or self._make_output(*shape)
        if not rows:
            return output
        self._batch.logits = self._buffers["logits"].data_ptr() if batch.logits else None
        kept = batch.addresses is not None  # whoever keeps the arrays has sized the tables too
        self._check(batch.positions, batch.block_tables.shape[1] if kept else None)
        self._run(batch, len(feature_layers), self._tapped.get(feature_layers, (0,))[0])
        return output

    def _make_output(
        self, outputs: int, with_logits: bool, tapped_rows: int, feature_layers: tuple[int, ...]
    ) -> ForwardOutput:
        """Make and keep the views of the buffers for so many rows."""
        logits = self._buffer("logits", outputs if with_logits else 0, self.vocab_size)
        argmax = self._buffer("argmax", outputs, dtype=torch.int64)
        finite = self._buffer("finite", outputs, dtype=torch.bool)
        features = None
        if feature_layers:
            width = len(feature_layers) * self.hidden_size
            features = self._buffer("features", tapped_rows, width, dtype=torch.bfloat16)
            layers = np.array(feature_layers, dtype=np.int32)
            self._tapped[feature_layers] = address(layers), layers
        if len(self._outputs) > MOST_OUTPUTS:
            self._outputs.clear()
        on_host = argmax.numpy(), finite.numpy()
        output = ForwardOutput(logits, argmax, finite, features, on_host)
        self._outputs[outputs, with_logits, tapped_rows, feature_layers] = output
        return output

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
        # Embeddings are looked up in the head's own copy where that is the same matrix in bf16.
        tied = config.tie_word_embeddings
        read: Callable[[], Tensor] = partial(take, weights, HEAD)
        if not tied or packer.recipe.takes("head"):
            self._embedding = packer.keep(take(weights, EMBEDDING), torch.bfloat16)
            structure.embedding = self._embedding.data_ptr()
        if tied:
            rows = self._embedding
            read = partial(take, weights, EMBEDDING) if rows is None else lambda: rows
        self.head = packer.matrix(Part.HEAD, config.vocab_size, config.hidden_size, read)
        structure.head = self.head.structure
        structure.embedding_panels = structure.head.panels
        structure.final_norm = packer.keep(take(weights, FINAL_NORM)).data_ptr()
