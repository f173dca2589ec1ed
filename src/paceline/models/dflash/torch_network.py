"""TorchDFlash: the serving form in plain torch, on any device and in any dtype.

The twin that the fused kernels are judged by, and the path for CUDA and float32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from paceline.models.attention import AttentionPlan
from paceline.models.batch import ForwardBatch, Network, Part
from paceline.models.config import Attention
from paceline.models.decoder import Angles, DecoderStack, Weights, linear_bytes
from paceline.models.dflash.batch import BlockOutput
from paceline.models.dflash.config import DFlashConfig
from paceline.models.dflash.formulas import block_kernels, convolve, scaled_logits
from paceline.models.dflash.tensors import CONVOLUTIONS, FC, HIDDEN_NORM, NORM, layer_prefix
from paceline.models.layers import Linear, pad_rows, rms_norm, rotate
from paceline.models.network import TorchNetwork
from paceline.models.quantized import UNQUANTIZED, Recipe, make_linear


class ConvolutionWeights:
    """Weights of DFlash 2's convolution around one sublayer."""

    def __init__(self, load: Callable[[str], Tensor], prefix: str) -> None:
        self.base = load(f"{prefix}.base_kernel")
        self.projection = Linear(load(f"{prefix}.kernel_projection.weight"))


class TorchDFlash(DecoderStack):
    """Implements `paceline.models.dflash.batch.DFlashNetwork`; shares the target's embedding and
    head. `weights` maps the checkpoint's names to tensors, which are copied. Positions of a batch
    are below `max_positions`."""

    def __init__(
        self,
        config: DFlashConfig,
        weights: Weights,
        target: Network,
        *,
        max_positions: int,
        dtype: torch.dtype,
        head_ids: Tensor | None = None,
        mask_embedding: Tensor | None = None,
        recipe: Recipe = UNQUANTIZED,
    ) -> None:
        shape = config.layers
        prefixes = [layer_prefix(layer) for layer in range(shape.num_layers)]
        super().__init__(shape, weights, prefixes, target.device, dtype, max_positions, recipe)
        self.config, self._target, self._recipe = config, target, recipe

        def load(name: str) -> Tensor:
            return weights[name].to(self.device, dtype, copy=True)

        self.convolutions = [
            [ConvolutionWeights(load, prefix + name) for name in CONVOLUTIONS]
            for prefix in prefixes
            if config.second is not None
        ]
        self.fc = make_linear(recipe, "context", load(FC))
        self.hidden_norm, self.norm = load(HIDDEN_NORM), load(NORM)
        self.context = self._context_projection()
        self.head_ids, self.head = head_ids, self._make_head(head_ids)
        self.mask_embedding = None
        if mask_embedding is not None:
            self.mask_embedding = mask_embedding.to(self.device, dtype)
        self.streamed_parts = self._count_parts()
        self.streamed_bytes = sum(self.streamed_parts.values())
        self.weight_bytes = self._count_bytes()

    @torch.no_grad()
    def inject(self, features: Tensor, positions: np.ndarray, slots: np.ndarray) -> None:
        """Write K and V of context rows for all layers, by one projection (SGLang and vLLM do the
        same): hidden_norm(fc(features)) is the same for every layer, and sees no layer's input
        norm."""
        shape, rows = self.config.layers, len(positions)
        padded = features.new_zeros((pad_rows(rows), features.shape[1]))
        padded[:rows] = features
        context = self._norm(self.fc(padded.to(self.device, self.dtype)), self.hidden_norm)
        projected = self.context(context)[:rows]
        projected = projected.view(rows, shape.num_layers, 2, shape.num_kv_heads, shape.head_dim)
        at = torch.from_numpy(positions.astype(np.int64)).to(self.device)
        where = torch.from_numpy(slots.astype(np.int64)).to(self.device)
        angles = self.cos.index_select(0, at), self.sin.index_select(0, at)
        for index, (layer, (keys, values)) in enumerate(zip(self.layers, self.kv, strict=True)):
            k, v = projected[:, index].unbind(1)
            assert layer.k_norm is not None
            k = rotate(self._norm(k, layer.k_norm), *angles)
            keys.flatten(0, 1).index_copy_(0, where, k)
            values.flatten(0, 1).index_copy_(0, where, v)

    @torch.no_grad()
    def draft(self, batch: ForwardBatch, *, logits: bool = False) -> BlockOutput:
        config = self.config
        plan, angles = self._plan(batch, tuple(dict.fromkeys(config.attention)))
        starts = torch.from_numpy(np.repeat(batch.seq_starts[:-1], np.diff(batch.seq_starts)))
        slots = torch.arange(len(plan.ids), device=self.device)
        slots[: plan.rows] -= starts.to(self.device)
        with self._spans(Part.EMBED):
            x = self._embed(plan.ids)
        for index, kind in enumerate(config.attention):
            x = self._layer(index, kind, x, angles, plan, slots)
        hidden = self._norm(x.index_select(0, plan.logit_rows), self.norm)
        with self._spans(Part.HEAD):
            scores = scaled_logits(config, self.head(hidden)[: len(batch.logit_rows)])
            argmax = scores.argmax(-1)
        top = scores.gather(1, argmax[:, None])[:, 0]
        return BlockOutput(
            argmax=argmax if self.head_ids is None else self.head_ids[argmax.cpu()],
            confidence=torch.exp(top - scores.logsumexp(-1)),
            logits=scores if logits else None,
            hidden=hidden[: len(batch.logit_rows)],
        )

    # -- inside -----------------------------------------------------------------------------------

    def _layer(
        self,
        index: int,
        kind: Attention,
        x: Tensor,
        angles: Angles,
        plan: AttentionPlan,
        slots: Tensor,
    ) -> Tensor:
        layer, spans = self.layers[index], self._spans
        kv = self.kv[index]
        eps = self.config.layers.rms_norm_eps
        normed = self._norm(x, layer.input_norm)
        if not self.convolutions:
            x = x + layer.attention(normed, angles, kv, plan, kind, eps, spans)
            return x + layer.mlp(self._norm(x, layer.mlp_norm), spans)
        attention, mlp = self.convolutions[index]
        before, after = block_kernels(attention.projection(normed), attention.base)
        inner = convolve(normed, before, slots)
        inner = layer.attention(inner, angles, kv, plan, kind, eps, spans)
        x = x + convolve(inner, after, slots)
        normed = self._norm(x, layer.mlp_norm)
        before, after = block_kernels(mlp.projection(normed), mlp.base)
        return x + convolve(layer.mlp(convolve(normed, before, slots), spans), after, slots)

    def _embed(self, ids: Tensor) -> Tensor:
        rows = self._target.embedding_rows(ids).to(self.dtype)
        if self.mask_embedding is not None:
            rows[ids == self.config.mask_token_id] = self.mask_embedding
        return rows * self.config.embedding_scale

    def _context_projection(self) -> Linear:
        """Return all layers' k and v projections, one below the other."""
        shape = self.config.layers
        first = shape.num_heads * shape.head_dim  # k and v lie behind q
        parts = [layer.qkv.outputs_from(first) for layer in self.layers]
        return parts[0].above(parts[1:])

    def _make_head(self, head_ids: Tensor | None) -> Linear:
        if head_ids is not None:
            return self._copied_head(head_ids)
        if isinstance(self._target, TorchNetwork) and self._target.dtype == self.dtype:
            return self._target.head  # one copy for both
        return self._copied_head(torch.arange(self.config.layers.vocab_size))

    def _copied_head(self, ids: Tensor) -> Linear:
        return make_linear(self._recipe, "head", self._target.head_rows(ids).to(self.dtype))

    def _linears(self) -> list[Linear]:
        """Return the products of a draft forward."""
        return [*super()._linears(), *(c.projection for pair in self.convolutions for c in pair)]

    def _count_parts(self) -> dict[str, int]:
        parts = linear_bytes(self.layers) | {Part.HEAD: self.head.bytes}
        if self.convolutions:
            sizes = [conv.projection.bytes for pair in self.convolutions for conv in pair]
            parts[Part.CONVOLUTION] = sum(sizes)
        return parts

    def _count_bytes(self) -> int:
        shared = isinstance(self._target, TorchNetwork) and self.head is self._target.head
        head = self.head.bytes if shared else 0
        return self.streamed_bytes - head + self.fc.bytes + self.context.bytes

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.layers.rms_norm_eps)
