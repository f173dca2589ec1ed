"""Weights of networks on the fused kernels: packed into one arena, in the kernels' layout."""

from __future__ import annotations

import ctypes
import logging
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from paceline.kernels import abi
from paceline.kernels.int8 import restore
from paceline.kernels.packing import (
    LANES,
    PAGE,
    PANEL,
    Arena,
    pack,
    packed_bytes,
    padded,
    unpack_rows,
)
from paceline.models.batch import Part
from paceline.models.config import ModelConfig
from paceline.models.packed_file import LEAST_BYTES, PackedFile
from paceline.models.quantized import Recipe
from paceline.models.tensors import JOINED, layer_tensors
from paceline.models.weights import Weights

log = logging.getLogger(__name__)
Shape = tuple[str, int, int]  # which of quantized.LINEARS (or another name), n, k


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [n, k] in the kernels' layout: bf16, or int8 with `scales` [n, padded]."""

    packed: Tensor  # int32 [panels, words, PANEL]
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

    def __init__(
        self,
        library: ctypes.CDLL,
        shapes: Sequence[Shape],
        recipe: Recipe,
        key: Mapping[str, object] | None = None,
    ) -> None:
        """Allocate memory for matrices of these `shapes`, which are packed later; or read what was
        packed before for the same `key` (see PackedFile)."""
        self.library, self.recipe = library, recipe
        self.bytes_by_part: Counter[str] = Counter()
        for name, n, k in shapes:
            self.bytes_by_part[name] += padded(packed_bytes(n, k, self._itemsize(name)), PAGE)
        size = self.bytes_by_part.total()
        self._file = None if key is None else PackedFile(key, size)
        kept = None if self._file is None else self._file.read()
        self.arena, self._scales = kept or (Arena(size), [])
        self._packs = kept is None
        if self._packs and self._file is not None and size >= LEAST_BYTES:
            when = "later starts read them from the cache, if it can keep them"
            log.info("packing weights for the kernels; %s", when)
        self._given_scales = iter(self._scales)
        self.kept: list[Tensor] = []

    def _itemsize(self, linear: str) -> int:
        return self.recipe.itemsize(linear, torch.bfloat16)

    @property
    def bytes(self) -> int:
        return self.arena.used + sum(tensor.nbytes for tensor in self.kept)

    def keep(self, tensor: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a copy that lives as long as this packer."""
        self.kept.append(tensor.to(dtype, copy=True).contiguous())
        return self.kept[-1]

    def matrix(
        self, linear: str, n: int, k: int, read: Callable[[], Tensor], bias: Tensor | None = None
    ) -> PackedMatrix:
        """Pack a matrix [n, k], which `read` returns if it was not packed before, with its bias [n]
        as it is."""
        packed = self.arena.take_matrix(n, k, self._itemsize(linear))
        kept_bias = None if bias is None else self.keep(bias)
        if not self.recipe.takes(linear):
            if self._packs:
                pack(read(), packed)
            return PackedMatrix(packed, n, k, kept_bias)
        if self._packs:
            quantised, scales = quantize_weight(self.library, read())
            pack(quantised, packed)
            self._scales.append(functional.pad(scales, (0, padded(n, PANEL) - n)))
        scales = self.keep(self._scales[-1] if self._packs else next(self._given_scales))
        return PackedMatrix(packed, n, k, kept_bias, scales)

    def finish(self, *, keep: bool = True) -> None:
        """Keep what was packed for the next start, where there is a place for it; not without
        `keep`, where the model's files were changed meanwhile."""
        if not keep:
            log.warning(
                "the model's files were changed while they were read: restart to read them again; "
                "packed weights are not kept"
            )
        elif self._packs and self._file is not None:
            self._file.write(self.arena, self._scales)
        self._scales = []

    def layer(self, layer: abi.Layer, config: ModelConfig, weights: Weights, prefix: str) -> None:
        """Fill in a decoder layer, whose tensors' names begin with `prefix`."""

        def joined(part: str, names: Sequence[str]) -> Tensor:
            tensors = [take(weights, prefix + name) for name in names]
            # A panel has 16 outputs of gate and 16 of up, so that SwiGLU finds both at once.
            return _in_turn(tensors) if part == Part.GATE_UP else torch.cat(tensors)

        def norm(name: str) -> int:
            return self.keep(take(weights, prefix + name)).data_ptr()

        shapes = layer_tensors(config)
        sizes = {name: (n, k) for name, n, k in layer_shapes(config)}
        for part, modules in JOINED.items():
            read = partial(joined, part, [f"{module}.weight" for module in modules])
            names = [f"{module}.bias" for module in modules]
            bias = joined(part, names) if names[0] in shapes else None
            setattr(layer, part, self.matrix(part, *sizes[part], read, bias).structure)
        layer.attention_norm = norm("input_layernorm.weight")
        layer.mlp_norm = norm("post_attention_layernorm.weight")
        if config.qk_norm:
            layer.q_norm = norm("self_attn.q_norm.weight")
            layer.k_norm = norm("self_attn.k_norm.weight")


def quantize_weight(library: ctypes.CDLL, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return `kernels.int8.quantize_weight` of a weight rounded to bf16, at the speed of memory."""
    rows = weight.to(torch.bfloat16).contiguous()
    quantised, scales = torch.empty(rows.shape, dtype=torch.int8), torch.empty(len(rows))
    sizes = (ctypes.c_int64(size) for size in (*rows.shape, torch.get_num_threads()))
    x, q, by_row = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (rows, quantised, scales))
    if library.pl_quantize(x, *sizes, q, by_row):
        raise MemoryError(f"no memory to quantise {len(rows)} rows")
    return quantised, scales


def _in_turn(halves: Sequence[Tensor]) -> Tensor:
    """Return the rows of both tensors, LANES of one and LANES of the other, padded with zeros."""
    rows = len(halves[0])
    panels, rest = padded(rows, LANES) // LANES, halves[0].shape[1:]
    joined = halves[0].new_zeros(2, panels * LANES, *rest)
    joined[0, :rows], joined[1, :rows] = halves
    return joined.view(2, panels, LANES, *rest).transpose(0, 1).reshape(-1, *rest)


def take(weights: Weights, name: str) -> Tensor:
    """Return a tensor by name, taken out of the mapping where it allows that."""
    return weights.pop(name) if isinstance(weights, MutableMapping) else weights[name]


def layer_shapes(config: ModelConfig) -> list[Shape]:
    """Return the matrices of one layer, as `Packer.layer` packs them."""
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    return [
        (Part.QKV, heads + 2 * config.num_kv_heads * config.head_dim, hidden),
        (Part.OUTPUT, hidden, heads),
        (Part.GATE_UP, 2 * padded(config.intermediate_size, LANES), hidden),
        (Part.DOWN, hidden, config.intermediate_size),
    ]
