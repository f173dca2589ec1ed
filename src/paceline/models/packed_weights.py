"""Weights of networks on the fused kernels: packed into one arena, in the kernels' layout."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

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
from paceline.models.config import ModelConfig
from paceline.models.quantized import Recipe

Weights = Mapping[str, Tensor]
Shape = tuple[str, int, int]  # which of quantized.LINEARS (or another name), n, k
QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [n, k] in the kernels' layout: bf16, or int8 with `scales` [n, padded]."""

    packed: Tensor  # int32 [panels, words, 16]
    n: int
    k: int
    bias: Tensor | None = None
    scales: Tensor | None = None

    @property
    def structure(self) -> abi.Matrix:
        """The structure that the kernels read: valid for as long as the tensors live."""
        bias, scales = (None if t is None else t.data_ptr() for t in (self.bias, self.scales))
        return abi.Matrix(self.packed.data_ptr(), bias, scales, self.n, self.k)

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows as bf16 [len(ids), k]."""
        if self.scales is None:
            return unpack_rows(self.packed, ids, self.k)
        quantised = unpack_rows(self.packed, ids, self.k, torch.int8)
        return restore(quantised, self.scales[ids]).to(torch.bfloat16)


class Packer:
    """Packs matrices into one arena, and keeps what the structures point into alive."""

    def __init__(self, library: ctypes.CDLL, shapes: Sequence[Shape], recipe: Recipe) -> None:
        """Allocate memory for matrices of these `shapes`, which are packed later."""
        self.library, self.recipe = library, recipe
        self.arena = Arena(
            arena_bytes([packed_bytes(n, k, self._itemsize(name)) for name, n, k in shapes])
        )
        self.kept: list[Tensor] = []

    def _itemsize(self, linear: str) -> int:
        return 1 if self.recipe.takes(linear) else 2

    @property
    def bytes(self) -> int:
        return self.arena.used + sum(tensor.nbytes for tensor in self.kept)

    def keep(self, tensor: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a copy that lives as long as this packer."""
        self.kept.append(tensor.to(dtype, copy=True).contiguous())
        return self.kept[-1]

    def matrix(
        self, linear: str, parts: Sequence[Tensor], biases: Sequence[Tensor] | None = None
    ) -> PackedMatrix:
        """Pack the parts below each other."""
        joined = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        n, k = joined.shape
        packed = self.arena.take_matrix(n, k, self._itemsize(linear))
        bias = self.keep(torch.cat(list(biases))) if biases else None
        scales = self._fill(linear, joined, packed)
        if scales is not None:
            scales = self.keep(functional.pad(scales, (0, padded(n, LANES) - n)))
        return PackedMatrix(packed, n, k, bias, scales)

    def gate_up(self, parts: Sequence[Tensor], biases: Sequence[Tensor] | None) -> PackedMatrix:
        """Pack gate and up panel by panel in turn, so that SwiGLU finds both in one work item."""
        k, n = parts[0].shape[1], 2 * padded(len(parts[0]), LANES)
        packed = self.arena.take_matrix(n, k, self._itemsize("gate_up"))
        scales = [self._fill("gate_up", part, packed[turn::2]) for turn, part in enumerate(parts)]
        by_output = None if scales[0] is None else self.keep(_in_turn(scales, n))
        bias = None if biases is None else self.keep(_in_turn(biases, n))
        return PackedMatrix(packed, n, k, bias, by_output)

    def _fill(self, linear: str, weight: Tensor, packed: Tensor) -> Tensor | None:
        """Pack a matrix into its storage; return its scales [n], if it has any."""
        if not self.recipe.takes(linear):
            pack(weight, packed)
            return None
        quantised, scales = quantize_weight(self.library, weight)
        pack(quantised, packed)
        return scales

    def layer(self, layer: abi.Layer, config: ModelConfig, weights: Weights, prefix: str) -> None:
        """Fill in a decoder layer, whose tensors' names begin with `prefix`."""

        def tensor(name: str) -> Tensor:
            return take(weights, prefix + name)

        def linears(module: str, *names: str) -> list[Tensor]:
            return [tensor(f"{module}.{name}.weight") for name in names]

        def biases(wanted: bool, module: str, *names: str) -> list[Tensor] | None:
            return [tensor(f"{module}.{name}.bias") for name in names] if wanted else None

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
        layer.attention_norm = self.keep(tensor("input_layernorm.weight")).data_ptr()
        layer.mlp_norm = self.keep(tensor("post_attention_layernorm.weight")).data_ptr()
        if config.qk_norm:
            layer.q_norm = self.keep(tensor("self_attn.q_norm.weight")).data_ptr()
            layer.k_norm = self.keep(tensor("self_attn.k_norm.weight")).data_ptr()


def quantize_weight(library: ctypes.CDLL, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return `kernels.int8.quantize_weight` of a weight rounded to bf16, at the speed of memory."""
    rows = weight.to(torch.bfloat16).contiguous()
    quantised, scales = torch.empty(rows.shape, dtype=torch.int8), torch.empty(len(rows))
    sizes = (ctypes.c_int64(size) for size in (*rows.shape, torch.get_num_threads()))
    at = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (rows, quantised, scales))
    x, q, by_row = at
    if library.pl_quantize(x, *sizes, q, by_row):
        raise MemoryError(f"no memory to quantise {len(rows)} rows")
    return quantised, scales


def _in_turn(halves: Sequence[Tensor | None], n: int) -> Tensor:
    """Return values of gate's and of up's outputs, in the order of their panels: float32 [n]."""
    outputs = torch.zeros(2, n // 2)
    for row, half in zip(outputs, halves, strict=True):
        assert half is not None
        row[: len(half)] = half
    return outputs.view(2, -1, LANES).transpose(0, 1).flatten()


def take(weights: Weights, name: str) -> Tensor:
    """Return a tensor by name, taken out of the mapping where it allows that."""
    return weights.pop(name) if isinstance(weights, MutableMapping) else weights[name]


def layer_shapes(config: ModelConfig) -> list[Shape]:
    """Return the matrices of one layer, as `Packer.layer` packs them."""
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    return [
        ("qkv", heads + 2 * config.num_kv_heads * config.head_dim, hidden),
        ("o", hidden, heads),
        ("gate_up", 2 * padded(config.intermediate_size, LANES), hidden),
        ("down", hidden, config.intermediate_size),
    ]


def streamed_by_part(shapes: Sequence[Shape], recipe: Recipe) -> dict[str, int]:
    """Return the bytes of a Packer's arena by the names of its matrices."""
    parts: dict[str, int] = {}
    for name, n, k in shapes:
        size = packed_bytes(n, k, 1 if recipe.takes(name) else 2)
        parts[name] = parts.get(name, 0) + padded(size, PAGE)
    return parts
