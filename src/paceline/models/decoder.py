"""A stack of decoder layers in plain torch, on any device and in any dtype, over paged KV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.core import KVSpec
from paceline.core.spans import OFF, Spans
from paceline.models.attention import CAUSAL, AttentionPlan, attend, make_plan
from paceline.models.batch import BLOCK_SIZE, ForwardBatch, Part
from paceline.models.config import Attention, ModelConfig
from paceline.models.layers import Linear, rms_norm, rotate, swiglu
from paceline.models.quantized import UNQUANTIZED, Recipe, make_linear
from paceline.models.rope import rope_tables

Weights = Mapping[str, Tensor]
Angles = tuple[Tensor, Tensor]


class DecoderLayer:
    """Weights of one layer, with q, k, v and gate, up joined to one product each."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        prefix: str,
        device: torch.device,
        dtype: torch.dtype,
        recipe: Recipe = UNQUANTIZED,
    ) -> None:
        def load(name: str) -> Tensor:
            # A copy even where dtype and device agree: no mapped file may lie under a network.
            return weights[prefix + name].to(device, dtype, copy=True)

        def linear(kind: str, module: str, *names: str, bias: bool) -> Linear:
            weight = torch.cat([load(f"{module}.{name}.weight") for name in names])
            joined = torch.cat([load(f"{module}.{name}.bias") for name in names]) if bias else None
            return make_linear(recipe, kind, weight, joined)

        self.input_norm = load("input_layernorm.weight")
        self.mlp_norm = load("post_attention_layernorm.weight")
        self.qkv = linear("qkv", "self_attn", "q_proj", "k_proj", "v_proj", bias=config.qkv_bias)
        self.o = linear("o", "self_attn", "o_proj", bias=config.o_bias)
        self.gate_up = linear("gate_up", "mlp", "gate_proj", "up_proj", bias=config.mlp_bias)
        self.down = linear("down", "mlp", "down_proj", bias=config.mlp_bias)
        self.q_norm = load("self_attn.q_norm.weight") if config.qk_norm else None
        self.k_norm = load("self_attn.k_norm.weight") if config.qk_norm else None

        self.head_dim = config.head_dim
        self.heads = [config.num_heads, config.num_kv_heads, config.num_kv_heads]

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self.qkv, self.o, self.gate_up, self.down

    def attention(
        self,
        x: Tensor,
        angles: Angles,
        kv: tuple[Tensor, Tensor],
        plan: AttentionPlan,
        kind: Attention,
        eps: float,
        spans: Spans = OFF,
    ) -> Tensor:
        """Run the attention sublayer over normed rows, whose keys and values go into `kv` first."""
        with spans(Part.QKV):
            qkv = self.qkv(x).view(len(x), sum(self.heads), self.head_dim)
        with spans(Part.ROTARY):
            q, k, v = torch.split(qkv, self.heads, dim=1)
            if self.q_norm is not None and self.k_norm is not None:
                q, k = rms_norm(q, self.q_norm, eps), rms_norm(k, self.k_norm, eps)
            q, k = rotate(q, *angles), rotate(k, *angles)
            keys, values = kv
            keys.flatten(0, 1).index_copy_(0, plan.write_slots, k[: plan.rows])
            values.flatten(0, 1).index_copy_(0, plan.write_slots, v[: plan.rows])
        with spans(Part.ATTENTION):
            attended = attend(q, keys, values, plan, kind)
        with spans(Part.OUTPUT):
            return self.o(attended)

    def mlp(self, x: Tensor, spans: Spans = OFF) -> Tensor:
        with spans(Part.GATE_UP):
            activated = swiglu(self.gate_up(x))
        with spans(Part.DOWN):
            return self.down(activated)


def linear_bytes(layers: Sequence[DecoderLayer]) -> dict[str, int]:
    """Return the bytes that a forward reads of the layers' products, by part."""
    names = (Part.QKV, Part.OUTPUT, Part.GATE_UP, Part.DOWN)
    return {name: sum(getattr(layer, name).bytes for layer in layers) for name in names}


def allocate_paged_kv(
    config: ModelConfig, num_blocks: int, device: torch.device, dtype: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """Allocate zeroed keys and values of each layer, [num_blocks + 1, BLOCK_SIZE, kv_heads,
    head_dim] each.

    The last block stays zero for ever: attention reads it where a sequence has no token.
    """
    shape = (num_blocks + 1, BLOCK_SIZE, config.num_kv_heads, config.head_dim)

    def zeros() -> Tensor:
        return torch.zeros(shape, device=device, dtype=dtype)

    return [(zeros(), zeros()) for _ in range(config.num_layers)]


class DecoderStack:
    """Decoder layers of the given `shape`, whose tensors' names begin with `prefixes`.

    Weights are copied. Positions of a batch are below `max_positions`. A subclass sets `head`.
    """

    head: Linear

    def __init__(
        self,
        shape: ModelConfig,
        weights: Weights,
        prefixes: Sequence[str],
        device: torch.device,
        dtype: torch.dtype,
        max_positions: int,
        recipe: Recipe,
    ) -> None:
        self.device, self.dtype, self._shape = device, dtype, shape
        self.kv_spec = KVSpec(shape.num_layers, shape.num_kv_heads, shape.head_dim, dtype.itemsize)
        self.layers = [
            DecoderLayer(shape, weights, prefix, device, dtype, recipe) for prefix in prefixes
        ]
        cos, sin = rope_tables(shape.rope, shape.head_dim, max_positions)
        self.cos, self.sin = cos.to(device), sin.to(device)
        self.kv: list[tuple[Tensor, Tensor]] = []
        self.num_blocks = 0
        self._spans: Spans = OFF

    def allocate_kv(self, num_blocks: int) -> None:
        """Allocate zeroed KV for `num_blocks` blocks, replacing any before."""
        self.kv = []  # freed first: both might not fit
        self.kv = allocate_paged_kv(self._shape, num_blocks, self.device, self.dtype)
        self.num_blocks = num_blocks

    def record(self, spans: Spans) -> None:
        """Let every forward from now on tell `spans` what its parts took, within the open span. On
        CUDA that is the time to launch them: the device works later."""
        self._spans = spans

    def read_weights(self) -> None:
        """Read the bytes that one forward streams, and do nothing else with them."""
        for linear in self._linears():
            linear.read()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _linears(self) -> list[Linear]:
        """Return the products of a forward."""
        return [*(linear for layer in self.layers for linear in layer.linears), self.head]

    def _plan(
        self, batch: ForwardBatch, kinds: Sequence[Attention] = (CAUSAL,)
    ) -> tuple[AttentionPlan, Angles]:
        """Return the plan of a forward, and the angles of its rows."""
        if int(batch.positions.max()) >= len(self.cos):
            raise ValueError(f"position {batch.positions.max()} is past {len(self.cos) - 1}")
        zero_slot = self.num_blocks * BLOCK_SIZE
        plan = make_plan(batch, zero_slot, self._shape.num_kv_heads, self.device, kinds)
        angles = self.cos.index_select(0, plan.positions), self.sin.index_select(0, plan.positions)
        return plan, angles
