"""TorchDFlash: the serving form in plain torch, on any device and in any dtype. It is the twin
that the fused kernels are judged by, and the path for CUDA and float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.models.attention import AttentionPlan
from paceline.models.batch import ForwardBatch, Network, Part
from paceline.models.config import Attention
from paceline.models.dflash.batch import BlockOutput
from paceline.models.dflash.checkpoint import DFlashCheckpoint
from paceline.models.dflash.module import convolved, scaled_logits
from paceline.models.dflash.tensors import CONVOLUTIONS, FC, HIDDEN_NORM, NORM, layer_prefix
from paceline.models.layers import Angles, Linear, pad_rows, rotate
from paceline.models.network import DecoderStack, TorchNetwork
from paceline.models.quantized import Recipe, make_linear


class TorchDFlash(DecoderStack):
    """Implements `paceline.models.dflash.batch.DFlashNetwork`; shares the target's embedding and
    head. Weights are copied. Positions of a batch are below `max_positions`."""

    def __init__(
        self,
        checkpoint: DFlashCheckpoint,
        target: Network,
        dtype: torch.dtype,
        max_positions: int,
        head_ids: Tensor | None,
        recipe: Recipe,
    ) -> None:
        config, weights, mask = checkpoint.config, checkpoint.weights, checkpoint.mask_embedding
        shape, device = config.layers, target.device
        prefixes = [layer_prefix(layer) for layer in range(shape.num_layers)]
        super().__init__(shape, weights, prefixes, device, dtype, max_positions, recipe)
        self.config, self._target = config, target

        def load(name: str) -> Tensor:
            return weights[name].to(device, dtype, copy=True)

        self.convolutions = [  # by layer: projection and base of the kernels, for both sublayers
            [
                (Linear(load(f"{name}.kernel_projection.weight")), load(f"{name}.base_kernel"))
                for name in (prefix + sublayer for sublayer in CONVOLUTIONS)
            ]
            for prefix in prefixes
            if config.second is not None
        ]
        self.fc = make_linear(recipe, Part.CONTEXT, load(FC))
        self.hidden_norm, self.norm = load(HIDDEN_NORM), load(NORM)
        # All layers' k and v projections, one below the other: they lie behind q.
        qkv, *others = (layer.qkv for layer in self.layers)
        self.context = qkv.outputs_from(shape.num_heads * shape.head_dim, *others)
        self.mask_embedding = None if mask is None else mask.to(device, dtype)
        self.head_ids = head_ids
        borrowed = 0
        if head_ids is None and isinstance(target, TorchNetwork) and target.dtype == dtype:
            self.head, borrowed = target.head, target.head.bytes  # one copy for both
        else:
            ids = torch.arange(shape.vocab_size) if head_ids is None else head_ids
            self.head = make_linear(recipe, Part.HEAD, target.head_rows(ids).to(dtype))
        self.streamed_parts = self._bytes_by_part()
        if self.convolutions:
            sizes = (projection.bytes for pair in self.convolutions for projection, _ in pair)
            self.streamed_parts[Part.CONVOLUTION] = sum(sizes)
        self.streamed_bytes = sum(self.streamed_parts.values())
        self.weight_bytes = self.streamed_bytes - borrowed + self.fc.bytes + self.context.bytes

    @torch.no_grad()
    def inject(self, features: Tensor, positions: Sequence[int], slots: Sequence[int]) -> None:
        """Write K and V of context rows for all layers, by one projection (SGLang and vLLM do the
        same): hidden_norm(fc(features)) is the same for every layer, and sees no layer's input
        norm."""
        shape, rows = self.config.layers, len(positions)
        padded = features.new_zeros((pad_rows(rows), features.shape[1]))
        padded[:rows] = features
        context = self._norm(self.fc(padded.to(self.device, self.dtype)), self.hidden_norm)
        projected = self.context(context)[:rows]
        projected = projected.view(rows, shape.num_layers, 2, shape.num_kv_heads, shape.head_dim)
        at, where = (torch.tensor(places, device=self.device) for places in (positions, slots))
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
            argmax=(argmax if self.head_ids is None else self.head_ids[argmax.cpu()]).tolist(),
            confidence=torch.exp(top - scores.logsumexp(-1)).tolist(),
            logits=scores if logits else None,
            hidden=hidden[: len(batch.logit_rows)],
        )

    def _layer(
        self,
        index: int,
        kind: Attention,
        x: Tensor,
        angles: Angles,
        plan: AttentionPlan,
        slots: Tensor,
    ) -> Tensor:
        layer, kv, spans = self.layers[index], self.kv[index], self._spans

        def attention(rows: Tensor) -> Tensor:
            return layer.attention(rows, angles, kv, plan, kind, spans)

        def mlp(rows: Tensor) -> Tensor:
            return layer.mlp(rows, spans)

        for number, (sublayer, norm) in enumerate(
            ((attention, layer.input_norm), (mlp, layer.mlp_norm))
        ):
            normed = self._norm(x, norm)
            if self.convolutions:
                projection, base = self.convolutions[index][number]
                x = x + convolved(sublayer, normed, projection(normed), base, slots)
            else:
                x = x + sublayer(normed)
        return x

    def _embed(self, ids: Tensor) -> Tensor:
        rows = self._target.embedding_rows(ids).to(self.dtype)
        if self.mask_embedding is not None:
            rows[ids == self.config.mask_token_id] = self.mask_embedding
        return rows * self.config.embedding_scale

    def _linears(self) -> list[Linear]:
        projections = (projection for pair in self.convolutions for projection, _ in pair)
        return [*super()._linears(), *projections]
