"""What networks on the fused kernels are made of: packed weights, KV, the kernels' structures."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, MutableMapping, Sequence

import numpy as np
import torch

from paceline.kernels import abi
from paceline.kernels.packing import LANES, PAGE, Arena, arena_bytes, pack, padded
from paceline.models.batch import BLOCK_SIZE, ForwardBatch
from paceline.models.config import ModelConfig

Weights = Mapping[str, torch.Tensor]
QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


class Packer:
    """Packs matrices into one arena, and keeps what the structures point into alive."""

    def __init__(self, shapes: Sequence[tuple[int, int]]) -> None:
        """`shapes` [n, k] of all matrices to come."""
        self.arena = Arena(arena_bytes(shapes))
        self.kept: list[torch.Tensor] = []

    @property
    def bytes(self) -> int:
        return self.arena.used + sum(tensor.nbytes for tensor in self.kept)

    def keep(self, tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> int:
        """Address of a copy that lives as long as this packer."""
        self.kept.append(tensor.to(dtype, copy=True).contiguous())
        return self.kept[-1].data_ptr()

    def room(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The parts below each other, packed: int32 [panels, pairs, 16]."""
        room = self.arena.take_matrix(sum(len(part) for part in parts), parts[0].shape[1])
        pack(parts[0] if len(parts) == 1 else torch.cat(list(parts)), room)
        return room

    def matrix(
        self, parts: Sequence[torch.Tensor], biases: Sequence[torch.Tensor] | None = None
    ) -> abi.Matrix:
        """Packs the parts below each other."""
        n, k = sum(len(part) for part in parts), parts[0].shape[1]
        bias = self.keep(torch.cat(list(biases))) if biases else None
        return abi.Matrix(self.room(parts).data_ptr(), bias, n, k)

    def gate_up(
        self, parts: Sequence[torch.Tensor], biases: Sequence[torch.Tensor] | None
    ) -> abi.Matrix:
        """Packs gate and up panel by panel in turn, so that SwiGLU finds both in one work item."""
        k, n = parts[0].shape[1], 2 * padded(len(parts[0]), LANES)
        room = self.arena.take_matrix(n, k)
        for which, part in enumerate(parts):
            pack(part, room[which::2])
        if biases is None:
            return abi.Matrix(room.data_ptr(), None, n, k)
        both = torch.zeros(2, n // 2)
        both[:, : len(biases[0])] = torch.stack(list(biases))
        bias = self.keep(both.view(2, -1, LANES).transpose(0, 1))
        return abi.Matrix(room.data_ptr(), bias, n, k)

    def layer(self, layer: abi.Layer, config: ModelConfig, weights: Weights, prefix: str) -> None:
        """Fills in a decoder layer, whose tensors' names begin with `prefix`."""

        def own(name: str) -> torch.Tensor:
            return take(weights, prefix + name)

        def linears(room: str, *names: str) -> list[torch.Tensor]:
            return [own(f"{room}.{name}.weight") for name in names]

        def biases(wanted: bool, room: str, *names: str) -> list[torch.Tensor] | None:
            return [own(f"{room}.{name}.bias") for name in names] if wanted else None

        layer.qkv = self.matrix(
            linears("self_attn", *QKV), biases(config.qkv_bias, "self_attn", *QKV)
        )
        layer.o = self.matrix(
            linears("self_attn", "o_proj"), biases(config.o_bias, "self_attn", "o_proj")
        )
        layer.gate_up = self.gate_up(
            linears("mlp", *GATE_UP), biases(config.mlp_bias, "mlp", *GATE_UP)
        )
        layer.down = self.matrix(
            linears("mlp", "down_proj"), biases(config.mlp_bias, "mlp", "down_proj")
        )
        layer.attention_norm = self.keep(own("input_layernorm.weight"))
        layer.mlp_norm = self.keep(own("post_attention_layernorm.weight"))
        if config.qk_norm:
            layer.q_norm = self.keep(own("self_attn.q_norm.weight"))
            layer.k_norm = self.keep(own("self_attn.k_norm.weight"))


def take(weights: Weights, name: str) -> torch.Tensor:
    """A tensor by name, taken out of the mapping where it allows that."""
    return weights.pop(name) if isinstance(weights, MutableMapping) else weights[name]


def layer_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """[n, k] of the matrices of one layer, as `Packer.layer` packs them."""
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    return [
        (heads + 2 * config.num_kv_heads * config.head_dim, hidden),
        (hidden, heads),
        (2 * padded(config.intermediate_size, LANES), hidden),
        (hidden, config.intermediate_size),
    ]


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


class Workspace:
    """Buffers that the calls of one network share."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.pl_workspace_create.restype = ctypes.c_void_p
        self.handle = ctypes.c_void_p(library.pl_workspace_create())
        weakref.finalize(self, library.pl_workspace_destroy, self.handle)
