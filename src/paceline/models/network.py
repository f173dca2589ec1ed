"""TorchNetwork: the network in plain torch, on any device and in any dtype.

It is the twin that the fused kernels are judged by, and the path for CUDA, for float32 and for
machines without a compiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import torch

from paceline.core import KVSpec
from paceline.core.spans import OFF, Spans
from paceline.models.attention import CAUSAL, AttentionPlan, attend, make_plan
from paceline.models.batch import BLOCK_SIZE, ForwardBatch, ForwardOutput, Part
from paceline.models.config import Attention, ModelConfig
from paceline.models.layers import Linear, rms_norm, rotate, swiglu
from paceline.models.quantized import UNQUANTIZED, Recipe, make_linear
from paceline.models.rope import rope_tables
from paceline.models.tensors import EMBEDDING, FINAL_NORM, HEAD, layer_prefix

Weights = Mapping[str, torch.Tensor]


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
        def load(name: str) -> torch.Tensor:
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
        x: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        kv: tuple[torch.Tensor, torch.Tensor],
        plan: AttentionPlan,
        kind: Attention,
        eps: float,
        spans: Spans = OFF,
    ) -> torch.Tensor:
        """Run the attention sublayer over normed rows, after writing their keys and values into
        `kv`."""
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

    def mlp(self, x: torch.Tensor, spans: Spans = OFF) -> torch.Tensor:
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
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Allocate zeroed keys and values of each layer, [num_blocks + 1, BLOCK_SIZE, kv_heads,
    head_dim] each.

    The last block stays zero for ever: attention reads it where a sequence has no token.
    """
    shape = (num_blocks + 1, BLOCK_SIZE, config.num_kv_heads, config.head_dim)

    def zeros() -> torch.Tensor:
        return torch.zeros(shape, device=device, dtype=dtype)

    return [(zeros(), zeros()) for _ in range(config.num_layers)]


class TorchNetwork:
    """Implements `paceline.models.batch.Network`.

    A row's logits have the same bits whatever else is in the batch and however its prompt was cut
    into chunks, for a fixed number of threads. The linear layers that `recipe` names are quantised.
    `weights` maps Hugging Face names to tensors, which are copied; positions of a batch are below
    `max_positions` (default: the model's context).
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        max_positions: int | None = None,
        recipe: Recipe = UNQUANTIZED,
    ) -> None:
        self.config, self.device, self.dtype = config, torch.device(device), dtype
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.num_layers = config.num_layers
        self.kv_spec = KVSpec(
            config.num_layers, config.num_kv_heads, config.head_dim, dtype.itemsize
        )
        self.embedding = weights[EMBEDDING].to(self.device, dtype, copy=True)
        self.layers = [
            DecoderLayer(config, weights, layer_prefix(layer), self.device, dtype, recipe)
            for layer in range(config.num_layers)
        ]
        self.final_norm = weights[FINAL_NORM].to(self.device, dtype, copy=True)
        tied = config.tie_word_embeddings
        head = self.embedding if tied else weights[HEAD].to(self.device, dtype, copy=True)
        self.head = make_linear(recipe, "head", head)
        self.streamed_parts = linear_bytes(self.layers) | {Part.HEAD: self.head.bytes}
        self.streamed_bytes = sum(self.streamed_parts.values())
        one_matrix = self.head.weight is self.embedding
        self.weight_bytes = self.streamed_bytes + (0 if one_matrix else self.embedding.nbytes)
        cos, sin = rope_tables(config.rope, config.head_dim, max_positions or config.max_context)
        self.cos, self.sin = cos.to(self.device), sin.to(self.device)
        self.kv: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.num_blocks = 0
        self._spans: Spans = OFF

    def allocate_kv(self, num_blocks: int) -> None:
        """Allocate zeroed KV for `num_blocks` blocks, replacing any before."""
        self.kv = []  # freed first: both might not fit
        self.kv = allocate_paged_kv(self.config, num_blocks, self.device, self.dtype)
        self.num_blocks = num_blocks

    def leading(self, layers: int) -> TorchNetwork:
        """Return the first layers as a network of its own over the same weights and KV."""
        other = copy(self)
        other.num_layers, other.layers = layers, self.layers[:layers]
        return other

    @torch.no_grad()
    def forward(self, batch: ForwardBatch, feature_layers: tuple[int, ...] = ()) -> ForwardOutput:
        """Compute all rows, write their KV, return logits of the rows asked for.

        Feature l is the residual stream after layer l, before the final norm.
        """
        if not len(batch.ids):
            empty = torch.empty(0, dtype=torch.int64, device=self.device)
            return ForwardOutput(self._no_logits(), empty, empty.bool())
        if int(batch.positions.max()) >= len(self.cos):
            raise ValueError(f"position {batch.positions.max()} is past {len(self.cos) - 1}")
        zero_slot, eps = self.num_blocks * BLOCK_SIZE, self.config.rms_norm_eps
        plan = make_plan(batch, zero_slot, self.config.num_kv_heads, self.device)
        angles = self.cos.index_select(0, plan.positions), self.sin.index_select(0, plan.positions)
        spans, taps = self._spans, {}
        with spans(Part.EMBED):
            x = self.embedding.index_select(0, plan.ids)
        for index, layer in enumerate(self.layers):
            normed = self._norm(x, layer.input_norm)
            x = x + layer.attention(normed, angles, self.kv[index], plan, CAUSAL, eps, spans)
            x = x + layer.mlp(self._norm(x, layer.mlp_norm), spans)
            if index in feature_layers:
                taps[index] = x[: plan.rows]
        features = None
        if feature_layers:
            with spans(Part.TAPS):
                features = torch.cat([taps[i] for i in feature_layers], dim=-1)
        with spans(Part.HEAD):
            logits = self._logits(x, plan, len(batch.logit_rows))
            argmax, finite = logits.argmax(-1), torch.isfinite(logits).all(-1)
        return ForwardOutput(logits, argmax, finite, features)

    def record(self, spans: Spans) -> None:
        """Let every forward from now on tell `spans` what its parts took, within the open span. On
        CUDA that is the time to launch them: the device works later."""
        self._spans = spans

    def embedding_rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding.index_select(0, ids.to(self.device))

    def head_rows(self, ids: torch.Tensor) -> torch.Tensor:
        if self.config.tie_word_embeddings:
            return self.embedding_rows(ids)
        return self.head.rows(ids.to(self.device), self.dtype)

    def read_weights(self) -> None:
        """Read the bytes that one decode step streams, and do nothing else with them."""
        for linear in (self.head, *(linear for layer in self.layers for linear in layer.linears)):
            linear.read()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with self._spans(Part.NORM):
            return rms_norm(x, weight, self.config.rms_norm_eps)

    def _no_logits(self) -> torch.Tensor:
        return torch.empty((0, self.vocab_size), dtype=torch.float32, device=self.device)

    def _logits(self, x: torch.Tensor, plan: AttentionPlan, outputs: int) -> torch.Tensor:
        if not outputs:
            return self._no_logits()
        normed = self._norm(x.index_select(0, plan.logit_rows), self.final_norm)
        return self.head(normed)[:outputs].float()
