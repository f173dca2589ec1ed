"""Layers over many rows at a time, without KV in pages, and whole sequences side by side: what
training reads on CUDA, where a forward of a few hundred rows takes as long as one of many thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.layers import Angles, rotate
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
    if ids.shape[1] > len(network.cos):
        raise ValueError(f"position {ids.shape[1] - 1} is past {len(network.cos) - 1}")
    x, taps = torch.empty(0), dict[int, Tensor]()
    for index, (x, _, _) in enumerate(through_layers(network, ids)):
        if index in layers:
            taps[index] = x
    features = torch.cat([taps[index] for index in layers], dim=-1)
    last = norm(x, network.final_norm, network.config.rms_norm_eps)
    return WholeOutput(features.view(*ids.shape, -1), last.view(*ids.shape, -1))


@torch.no_grad()
def through_layers(network: TorchNetwork, ids: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield each layer's output [sequences * width, hidden], and its keys and values [sequences,
    width, kv_heads, head_dim], for ids int64 [sequences, width]. Padding stands behind a sequence,
    where its own tokens do not look."""
    count, width = ids.shape
    config = network.config
    group = config.num_heads // config.num_kv_heads
    x = network.embedding.index_select(0, ids.flatten())
    angles = network.cos[:width].repeat(count, 1), network.sin[:width].repeat(count, 1)
    for layer in network.layers:
        q, k, v = (
            part.view(count, width, -1, layer.head_dim) for part in rotated_qkv(layer, x, angles)
        )
        wide_k, wide_v = (part.transpose(1, 2).repeat_interleave(group, 1) for part in (k, v))
        attended = functional.scaled_dot_product_attention(
            q.transpose(1, 2), wide_k, wide_v, is_causal=True
        )
        x = layer_output(layer, x, attended.transpose(1, 2).reshape(len(x), -1))
        yield x, k, v


def rotated_qkv(layer: DecoderLayer, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v [rows, heads, head_dim] of x [rows, hidden]; q and k are rotated by `angles`
    of the same rows."""
    heads, kv_heads, _ = layer.heads
    qkv = layer.qkv.product(norm(x, layer.input_norm, layer.eps)).view(len(x), -1, layer.head_dim)
    both, v = torch.split(qkv, [heads + kv_heads, kv_heads], 1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = torch.split(both, [heads, kv_heads], 1)
        both = torch.cat([norm(q, layer.q_norm, layer.eps), norm(k, layer.k_norm, layer.eps)], 1)
    q, k = torch.split(rotate(both, *angles), [heads, kv_heads], 1)
    return q, k, v


def layer_output(layer: DecoderLayer, x: Tensor, attended: Tensor) -> Tensor:
    """Return the layer's output of its input x and what was attended [rows, heads * head_dim]."""
    x = x + layer.o.product(attended)
    gate, up = layer.gate_up.product(norm(x, layer.mlp_norm, layer.eps)).chunk(2, -1)
    return x + layer.down.product(functional.silu(gate) * up)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As layers.rms_norm, in one kernel where torch has it."""
    return functional.rms_norm(x, weight.shape, weight, eps)


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
