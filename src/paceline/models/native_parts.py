"""What networks on the fused kernels are made of: packed weights, KV, the kernels' structures."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from paceline.core.spans import OFF, Spans
from paceline.kernels import abi
from paceline.kernels.int8 import restore
from paceline.kernels.packing import (
    LANES,
    PAGE,
    Arena,
    arena_bytes,
    pack,
    packed_bytes,
    padded,
    unpack_rows,
)
from paceline.models.batch import BLOCK_SIZE, ForwardBatch
from paceline.models.config import ModelConfig
from paceline.models.parts import forward_parts
from paceline.models.recipe import Recipe

Weights = Mapping[str, torch.Tensor]
Shape = tuple[str, int, int]  # which of recipe.LINEARS (or another name), n, k
QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [n, k] in the kernels' layout: bf16, or int8 with `scales` [n, padded]."""

    room: torch.Tensor  # int32 [panels, words, 16]
    n: int
    k: int
    bias: torch.Tensor | None = None
    scales: torch.Tensor | None = None

    @property
    def structure(self) -> abi.Matrix:
        """What the kernels read: valid for as long as the tensors live."""
        bias, scales = (None if t is None else t.data_ptr() for t in (self.bias, self.scales))
        return abi.Matrix(self.room.data_ptr(), bias, scales, self.n, self.k)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """bf16 [len(ids), k]."""
        if self.scales is None:
            return unpack_rows(self.room, ids, self.k)
        whole = unpack_rows(self.room, ids, self.k, torch.int8)
        return restore(whole, self.scales[ids]).to(torch.bfloat16)


class Packer:
    """Packs matrices into one arena, and keeps what the structures point into alive."""

    def __init__(self, library: ctypes.CDLL, shapes: Sequence[Shape], recipe: Recipe) -> None:
        """`shapes` of all matrices to come."""
        self.library, self.recipe = library, recipe
        self.arena = Arena(
            arena_bytes([packed_bytes(n, k, self._itemsize(name)) for name, n, k in shapes])
        )
        self.kept: list[torch.Tensor] = []

    def _itemsize(self, linear: str) -> int:
        return 1 if self.recipe.takes(linear) else 2

    @property
    def bytes(self) -> int:
        return self.arena.used + sum(tensor.nbytes for tensor in self.kept)

    def keep(self, tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A copy that lives as long as this packer."""
        self.kept.append(tensor.to(dtype, copy=True).contiguous())
        return self.kept[-1]

    def matrix(
        self,
        linear: str,
        parts: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor] | None = None,
    ) -> PackedMatrix:
        """Packs the parts below each other."""
        whole = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        n, k = whole.shape
        room = self.arena.take_matrix(n, k, self._itemsize(linear))
        bias = self.keep(torch.cat(list(biases))) if biases else None
        scales = self._fill(linear, whole, room)
        if scales is not None:
            scales = self.keep(functional.pad(scales, (0, padded(n, LANES) - n)))
        return PackedMatrix(room, n, k, bias, scales)

    def gate_up(
        self, parts: Sequence[torch.Tensor], biases: Sequence[torch.Tensor] | None
    ) -> PackedMatrix:
        """Packs gate and up panel by panel in turn, so that SwiGLU finds both in one work item."""
        k, n = parts[0].shape[1], 2 * padded(len(parts[0]), LANES)
        room = self.arena.take_matrix(n, k, self._itemsize("gate_up"))
        scales = [self._fill("gate_up", part, room[which::2]) for which, part in enumerate(parts)]
        by_output = None if scales[0] is None else self.keep(_in_turn(scales, n))
        bias = None if biases is None else self.keep(_in_turn(biases, n))
        return PackedMatrix(room, n, k, bias, by_output)

    def _fill(self, linear: str, weight: torch.Tensor, room: torch.Tensor) -> torch.Tensor | None:
        """Packs a matrix into its room; returns its scales [n], if it has any."""
        if not self.recipe.takes(linear):
            pack(weight, room)
            return None
        whole, scales = quantize_weight(self.library, weight)
        pack(whole, room)
        return scales

    def layer(self, layer: abi.Layer, config: ModelConfig, weights: Weights, prefix: str) -> None:
        """Fills in a decoder layer, whose tensors' names begin with `prefix`."""

        def own(name: str) -> torch.Tensor:
            return take(weights, prefix + name)

        def linears(room: str, *names: str) -> list[torch.Tensor]:
            return [own(f"{room}.{name}.weight") for name in names]

        def biases(wanted: bool, room: str, *names: str) -> list[torch.Tensor] | None:
            return [own(f"{room}.{name}.bias") for name in names] if wanted else None

        layer.qkv = self.matrix(
            "qkv", linears("self_attn", *QKV), biases(config.qkv_bias, "self_attn", *QKV)
        ).structure
        layer.o = self.matrix(
            "o", linears("self_attn", "o_proj"), biases(config.o_bias, "self_attn", "o_proj")
        ).structure
        layer.gate_up = self.gate_up(
            linears("mlp", *GATE_UP), biases(config.mlp_bias, "mlp", *GATE_UP)
        ).structure
        layer.down = self.matrix(
            "down", linears("mlp", "down_proj"), biases(config.mlp_bias, "mlp", "down_proj")
        ).structure
        layer.attention_norm = self.keep(own("input_layernorm.weight")).data_ptr()
        layer.mlp_norm = self.keep(own("post_attention_layernorm.weight")).data_ptr()
        if config.qk_norm:
            layer.q_norm = self.keep(own("self_attn.q_norm.weight")).data_ptr()
            layer.k_norm = self.keep(own("self_attn.k_norm.weight")).data_ptr()


def quantize_weight(
    library: ctypes.CDLL, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`kernels.int8.quantize_weight` of a weight rounded to bf16, at the speed of memory."""
    rows = weight.to(torch.bfloat16).contiguous()
    whole, scales = torch.empty(rows.shape, dtype=torch.int8), torch.empty(len(rows))
    sizes = (ctypes.c_int64(size) for size in (*rows.shape, torch.get_num_threads()))
    at = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (rows, whole, scales))
    x, q, by_row = at
    if library.pl_quantize(x, *sizes, q, by_row):
        raise MemoryError(f"no memory to quantise {len(rows)} rows")
    return whole, scales


def _in_turn(halves: Sequence[torch.Tensor | None], n: int) -> torch.Tensor:
    """Values of gate's and of up's outputs, in the order of their panels: float32 [n]."""
    both = torch.zeros(2, n // 2)
    for row, half in zip(both, halves, strict=True):
        assert half is not None
        row[: len(half)] = half
    return both.view(2, -1, LANES).transpose(0, 1).flatten()


def take(weights: Weights, name: str) -> torch.Tensor:
    """A tensor by name, taken out of the mapping where it allows that."""
    return weights.pop(name) if isinstance(weights, MutableMapping) else weights[name]


def layer_shapes(config: ModelConfig) -> list[Shape]:
    """The matrices of one layer, as `Packer.layer` packs them."""
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    return [
        ("qkv", heads + 2 * config.num_kv_heads * config.head_dim, hidden),
        ("o", hidden, heads),
        ("gate_up", 2 * padded(config.intermediate_size, LANES), hidden),
        ("down", hidden, config.intermediate_size),
    ]


def streamed_by_part(shapes: Sequence[Shape], recipe: Recipe) -> dict[str, int]:
    """Bytes of the arena that the matrices of each name take, together what a Packer has used."""
    parts: dict[str, int] = {}
    for name, n, k in shapes:
        size = packed_bytes(n, k, 1 if recipe.takes(name) else 2)
        parts[name] = parts.get(name, 0) + padded(size, PAGE)
    return parts


def model_structure(config: ModelConfig, layers: ctypes.Array[abi.Layer]) -> abi.Model:
    """The kernels' model with its shape filled in; weights are still to come."""
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
    """Zeroed KV for `num_blocks` blocks of BLOCK_SIZE tokens, written into the layers' structures.

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
    """Points the kernels' batch at the rows of `batch`, which must outlive the call."""
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


def read_bytes(library: ctypes.CDLL, data: torch.Tensor) -> None:
    """Reads every byte once, with the forward's threads, and does nothing else."""
    at = ctypes.c_void_p(data.data_ptr())
    library.pl_read(at, ctypes.c_int64(data.nbytes), torch.get_num_threads())


class Ticks:
    """When the parts of a forward of `batch` ended, as its kernels wrote them down: they do so only
    if anybody listens."""

    def __init__(self, spans: Spans, layers: int, batch: abi.Batch) -> None:
        self._spans, self._parts = spans, forward_parts(layers)
        self._ticks = (ctypes.c_int64 * (len(self._parts) + 1))()
        batch.ticks = None if spans is OFF else ctypes.addressof(self._ticks)

    def tell(self) -> None:
        """After a forward."""
        self._spans.parts(self._parts, self._ticks)


class Workspace:
    """Buffers that the calls of one network share."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.pl_workspace_create.restype = ctypes.c_void_p
        self.handle = ctypes.c_void_p(library.pl_workspace_create())
        weakref.finalize(self, library.pl_workspace_destroy, self.handle)
