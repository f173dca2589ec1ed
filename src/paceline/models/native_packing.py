"""From a checkpoint's tensors to the structures that the fused kernels read."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

import torch

from paceline.kernels import abi
from paceline.kernels.packing import LANES, Arena, arena_bytes, pack, padded
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
