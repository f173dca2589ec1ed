"""Whole sequences side by side, without KV in pages: what training reads on CUDA, where a forward
of a few hundred rows takes as long as one of many thousand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.layers import Angles
from paceline.models.network import DecoderLayer, TorchNetwork

MOST_ROWS = 1 << 16  # of one forward, padding included
MOST_LOGITS = 1 << 13  # rows of logits that are in memory at once


@dataclass(frozen=True, slots=True)
class WholeOutput:
    """The outputs of sequences side by side. `features` [sequences, longest, layers * hidden] in
    the network's dtype, and `last` [sequences, longest, hidden], what the head reads. Behind the
    end of a sequence stands nothing of meaning."""

    features: Tensor
    last: Tensor


@torch.no_grad()
def whole_output(
    network: TorchNetwork, sequences: Sequence[Tensor], layers: Sequence[int]
) -> WholeOutput:
    """Return the outputs of the target's `layers` for token ids int64 [n] of each sequence. Nothing
    is kept, and the bits are not those of `network.forward`: sums have another order."""
    ids = torch.nn.utils.rnn.pad_sequence(list(sequences), batch_first=True)
    ids = ids.to(network.device, non_blocking=True)
    longest = ids.shape[1]
    if longest > len(network.cos):
        raise ValueError(f"position {longest - 1} is past {len(network.cos) - 1}")
    angles = network.cos[:longest], network.sin[:longest]
    x = network.embedding[ids]
    eps, taps = network.config.rms_norm_eps, dict[int, Tensor]()
    for index, layer in enumerate(network.layers):
        x = x + _attention(layer, _norm(x, layer.input_norm, eps), angles)
        gate, up = layer.gate_up.product(_norm(x, layer.mlp_norm, eps)).chunk(2, dim=-1)
        x = x + layer.down.product(functional.silu(gate) * up)
        if index in layers:
            taps[index] = x
    features = torch.cat([taps[index] for index in layers], dim=-1)
    return WholeOutput(features, _norm(x, network.final_norm, eps))


def side_by_side(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the sequences of these lengths in groups for one forward each, by length, so that
    little is padded."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if group and (len(group) + 1) * lengths[group[0]] > MOST_ROWS:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


@torch.no_grad()
def logits_of(network: TorchNetwork, last: Tensor) -> Iterator[Tensor]:
    """Yield the logits float32 [rows, vocabulary] of `last` [rows, hidden], some rows at a time."""
    for rows in torch.split(last, MOST_LOGITS):
        yield network.head.product(rows).float()


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, eps)


def _attention(layer: DecoderLayer, x: Tensor, angles: Angles) -> Tensor:
    """Return the attention sublayer of x [sequences, tokens, hidden]. Padding stands behind a
    sequence, where its own tokens do not look."""
    count, tokens, _ = x.shape
    qkv = layer.qkv.product(x).view(count, tokens, sum(layer.heads), layer.head_dim)
    q, k, v = torch.split(qkv.transpose(1, 2), layer.heads, dim=1)  # [sequences, heads, tokens, …]
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = _norm(q, layer.q_norm, layer.eps), _norm(k, layer.k_norm, layer.eps)
    mixed = functional.scaled_dot_product_attention(
        _rotate(q, *angles), _rotate(k, *angles), v, is_causal=True, enable_gqa=q.shape != k.shape
    )
    return layer.o.product(mixed.transpose(1, 2).reshape(count, tokens, -1))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., tokens, head_dim] as layers.rotate() does."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
