"""TorchNetwork: the network in plain torch, on any device and in any dtype, over paged KV. It is
the twin that the fused kernels are judged by, and the path for CUDA, float32 and machines without a
compiler."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from paceline.core import KVSpec
from paceline.core.spans import OFF, Spans
from paceline.models.attention import CAUSAL, AttentionPlan, attend, make_plan
from paceline.models.batch import BLOCK_SIZE, ForwardBatch, ForwardOutput, Part
from paceline.models.config import Attention, ModelConfig
from paceline.models.layers import Angles, Linear, rms_norm, rotate, swiglu
from paceline.models.quantized import UNQUANTIZED, Recipe, make_linear
from paceline.models.rope import rope_tables
from paceline.models.tensors import EMBEDDING, FINAL_NORM, HEAD, JOINED, layer_prefix, layer_tensors
from paceline.models.weights import Weights

KV = tuple[Tensor, Tensor]  # keys and values of a layer, [blocks, BLOCK_SIZE, kv_heads, head_dim]


class DecoderLayer:
    """Weights of one layer, with q, k, v and gate, up joined to one product each."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        prefix: str,
        device: torch.device,
        dtype: torch.dtype,
        recipe: Recipe,
    ) -> None:
        shapes = layer_tensors(config)

        def load(*names: str) -> Tensor:
            # A copy even where dtype and device agree: no mapped file may lie under a network.
            tensors = [weights[prefix + name].to(device, dtype, copy=True) for name in names]
            return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

        def linear(part: str) -> Linear:
            biases = [name for module in JOINED[part] if (name := f"{module}.bias") in shapes]
            weight = load(*(f"{module}.weight" for module in JOINED[part]))
            return make_linear(recipe, part, weight, load(*biases) if biases else None)

        self.input_norm = load("input_layernorm.weight")
        self.mlp_norm = load("post_attention_layernorm.weight")
        self.qkv, self.o, self.gate_up, self.down = map(linear, JOINED)
        self.q_norm = load("self_attn.q_norm.weight") if config.qk_norm else None
        self.k_norm = load("self_attn.k_norm.weight") if config.qk_norm else None
        self.eps, self.head_dim = config.rms_norm_eps, config.head_dim
        self.heads = [config.num_heads, config.num_kv_heads, config.num_kv_heads]

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self.qkv, self.o, self.gate_up, self.down

    def attention(
        self, x: Tensor, angles: Angles, kv: KV, plan: AttentionPlan, kind: Attention, spans: Spans
    ) -> Tensor:
        """Run the attention sublayer over normed rows, whose keys and values go into `kv` first."""
        with spans(Part.QKV):
            qkv = self.qkv(x).view(len(x), sum(self.heads), self.head_dim)
        with spans(Part.ROTARY):
            q, k, v = torch.split(qkv, self.heads, dim=1)
            if self.q_norm is not None and self.k_norm is not None:
                q, k = rms_norm(q, self.q_norm, self.eps), rms_norm(k, self.k_norm, self.eps)
            q, k = rotate(q, *angles), rotate(k, *angles)
            keys, values = kv
            if plan.write_rows is None:
                new_keys, new_values = k[: plan.rows], v[: plan.rows]
            else:
                new_keys, new_values = k[plan.write_rows], v[plan.write_rows]
            keys.flatten(0, 1).index_copy_(0, plan.write_slots, new_keys)
            values.flatten(0, 1).index_copy_(0, plan.write_slots, new_values)
        with spans(Part.ATTENTION):
            attended = attend(q, keys, values, plan, kind)
        with spans(Part.OUTPUT):
            return self.o(attended)

    def mlp(self, x: Tensor, spans: Spans) -> Tensor:
        with spans(Part.GATE_UP):
            activated = swiglu(self.gate_up(x))
        with spans(Part.DOWN):
            return self.down(activated)


class DecoderStack:
    """Decoder layers of the given `shape`, whose tensors' names begin with `prefixes`. Positions of
    a batch are below `max_positions`. A subclass sets `head`."""

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
        self.number = recipe.number
        self.kv_spec = KVSpec(shape.num_layers, shape.num_kv_heads, shape.head_dim, dtype.itemsize)
        self.layers = [
            DecoderLayer(shape, weights, prefix, device, dtype, recipe) for prefix in prefixes
        ]
        cos, sin = rope_tables(shape.rope, shape.head_dim, max_positions)
        self.cos, self.sin = cos.to(device), sin.to(device)
        self.kv: list[KV] = []
        self.num_blocks = 0
        self._spans: Spans = OFF

    def allocate_kv(self, num_blocks: int) -> None:
        """One block more stays zero for ever: attention reads it where a sequence has no token."""
        self.kv = []  # freed first: both might not fit
        shape = (num_blocks + 1, BLOCK_SIZE, self._shape.num_kv_heads, self._shape.head_dim)
        zeros = (torch.zeros(2, *shape, device=self.device, dtype=self.dtype) for _ in self.layers)
        self.kv = [(keys, values) for keys, values in zeros]
        self.num_blocks = num_blocks

    def clear_kv(self, num_blocks: int) -> None:
        for keys, values in self.kv:
            keys[:num_blocks].zero_()
            values[:num_blocks].zero_()

    @torch.no_grad()
    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        source, target = torch.tensor([sources, targets], device=self.device)
        for cache in (cache for pair in self.kv for cache in pair):
            cache[target] = cache[source]

    def record(self, spans: Spans) -> None:
        """On CUDA a part's time is the time to launch it: the device works later."""
        self._spans = spans

    def read_weights(self) -> None:
        for linear in self._linears():
            linear.read()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _linears(self) -> list[Linear]:
        """Return the products of a forward."""
        return [*(linear for layer in self.layers for linear in layer.linears), self.head]

    def _bytes_by_part(self) -> dict[str, int]:
        """Return the bytes that a forward reads of its products."""
        parts = {part: sum(getattr(layer, part).bytes for layer in self.layers) for part in JOINED}
        return parts | {Part.HEAD: self.head.bytes}

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self._shape.rms_norm_eps)

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


class TorchNetwork(DecoderStack):
    """Implements `paceline.models.batch.Network`, by default for the model's whole context. For a
    fixed number of threads, a row's logits have the same bits whatever else is in the batch and
    however its prompt was cut into chunks."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        max_positions: int | None = None,
        recipe: Recipe = UNQUANTIZED,
    ) -> None:
        prefixes = [layer_prefix(layer) for layer in range(config.num_layers)]
        positions = max_positions or config.max_context
        place = torch.device(device)
        super().__init__(config, weights, prefixes, place, dtype, positions, recipe)
        self.config, self.num_layers = config, config.num_layers
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size

        def load(name: str) -> Tensor:
            return weights[name].to(self.device, dtype, copy=True)

        self.embedding, self.final_norm = load(EMBEDDING), load(FINAL_NORM)
        head = self.embedding if config.tie_word_embeddings else load(HEAD)
        self.head = make_linear(recipe, Part.HEAD, head)
        self.streamed_parts = self._bytes_by_part()
        self.streamed_bytes = sum(self.streamed_parts.values())
        one_matrix = self.head.weight is self.embedding
        self.weight_bytes = self.streamed_bytes + (0 if one_matrix else self.embedding.nbytes)

    def leading(self, layers: int) -> TorchNetwork:
        """Return the first layers as a network of its own over the same weights and KV."""
        other = copy(self)
        other.num_layers, other.layers = layers, self.layers[:layers]
        return other

    @torch.no_grad()
    def forward(self, batch: ForwardBatch, feature_layers: tuple[int, ...] = ()) -> ForwardOutput:
        if not len(batch.ids):
            nothing = torch.empty(0, self.vocab_size, device=self.device)
            empty = torch.empty(0, dtype=torch.int64, device=self.device)
            return ForwardOutput(nothing, empty, empty.bool())
        plan, angles = self._plan(batch)
        spans, taps = self._spans, {}
        with spans(Part.EMBED):
            x = self.embedding.index_select(0, plan.ids)
        for index, layer in enumerate(self.layers):
            normed = self._norm(x, layer.input_norm)
            x = x + layer.attention(normed, angles, self.kv[index], plan, CAUSAL, spans)
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
        wanted = logits if batch.logits else logits[:0]
        return ForwardOutput(wanted, argmax, finite, features)

    def embedding_rows(self, ids: Tensor) -> Tensor:
        return self.embedding.index_select(0, ids.to(self.device))

    def head_rows(self, ids: Tensor) -> Tensor:
        if self.config.tie_word_embeddings:
            return self.embedding_rows(ids)
        return self.head.rows(ids.to(self.device), self.dtype)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        with self._spans(Part.NORM):
            return super()._norm(x, weight)

    def _logits(self, x: Tensor, plan: AttentionPlan, outputs: int) -> Tensor:
        if not outputs:
            return torch.empty(0, self.vocab_size, device=self.device)
        normed = self._norm(x.index_select(0, plan.logit_rows), self.final_norm)
        return self.head(normed)[:outputs].float()
