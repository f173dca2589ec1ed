"""Paged attention in plain torch, over packed rows of many sequences, without a loop over them.

Rows are cut into tiles of QUERY_TILE rows of one sequence, and keys into chunks of KEY_CHUNK
positions. Chunk after chunk, all tiles that reach so far are multiplied at once; a running softmax
(arXiv 1805.02867) in float32 merges the chunks in order. So a row's sums have a shape and an order
that depend on its position alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.models.batch import BLOCK_SIZE, ForwardBatch
from paceline.models.config import Attention
from paceline.models.layers import pad_rows

QUERY_TILE = 8
KEY_CHUNK = 256
CAUSAL = Attention()
FAINT = -80.0  # exp of less makes no difference to a sum that has a 1
HIDDEN = -1e30  # score of a key out of sight: its weight is 0 beside any key in sight


@dataclass(slots=True)
class Chunk:
    """One chunk of keys for the first `tiles` tiles."""

    tiles: int
    slots: Tensor  # [tiles * kv_heads * KEY_CHUNK] of a cache seen as [slots * kv_heads, head_dim]
    hidden: Tensor  # bool [tiles, 1, QUERY_TILE, 1, KEY_CHUNK], keys that the row does not see


@dataclass(slots=True)
class AttentionPlan:
    """Index tensors of one forward, on the network's device, shared by all layers. Rows are padded
    to a multiple of TILE; what the padding computes is thrown away, and never cached."""

    rows: int  # real ones
    ids: Tensor  # [padded rows]
    positions: Tensor  # [padded rows]
    write_slots: Tensor  # [rows + shares]
    write_rows: Tensor | None  # [rows + shares] whose KV goes there; None: each row's, in order
    logit_rows: Tensor  # [outputs padded to a multiple of TILE]
    tile_rows: Tensor  # [tiles * QUERY_TILE] the row in each place; unused ones repeat row 0
    row_places: Tensor  # [padded rows] the inverse
    chunks: dict[Attention, list[Chunk]]  # by what a layer's rows see


def make_plan(
    batch: ForwardBatch,
    zero_slot: int,
    kv_heads: int,
    device: torch.device,
    kinds: Sequence[Attention] = (CAUSAL,),
) -> AttentionPlan:
    """Lay out a forward whose layers look around as `kinds` say, with one upload. Positions out of
    range read `zero_slot`, which is always zero, so that stale numbers there (infinities even)
    never reach a product."""
    starts = batch.seq_starts.astype(np.int64)
    counts, rows = np.diff(starts), len(batch.ids)
    sequence = np.repeat(np.arange(len(counts)), counts)
    positions = batch.positions.astype(np.int64)
    ends = positions[starts[1:] - 1] + 1
    tile_sequence, tile_rows, row_places = _tiles(starts, counts, ends)
    first = np.zeros(len(counts), np.int64) if batch.first is None else batch.first
    table = _slot_table(batch.block_tables, first, ends, zero_slot)
    padded, outputs = pad_rows(rows), len(batch.logit_rows)
    written = _written(batch, rows)
    writing = sequence if written is None else np.concatenate([sequence, batch.sharers])
    at = positions if written is None else positions[written]
    blocks = batch.block_tables[writing, at // BLOCK_SIZE].astype(np.int64)
    in_sight = [_in_sight(kind, positions, first[sequence], ends[sequence] - 1) for kind in kinds]
    arrays = {
        "ids": _padded(batch.ids, padded),
        "positions": _padded(positions, padded),
        "write_slots": blocks * BLOCK_SIZE + at % BLOCK_SIZE,
        "write_rows": np.zeros(0, np.int64) if written is None else written,
        "logit_rows": _padded(batch.logit_rows, pad_rows(outputs)),
        "tile_rows": tile_rows,
        "row_places": _padded(row_places, padded),
        "in_sight": np.concatenate([ends[tile_rows] for pair in in_sight for ends in pair]),
        "tile_sequence": tile_sequence,
        "table": table.reshape(-1),
    }
    uploaded = torch.from_numpy(np.concatenate(list(arrays.values()))).to(device)
    parts = torch.split(uploaded, [len(array) for array in arrays.values()])
    on_device = dict(zip(arrays, parts, strict=True))
    slots, owner = on_device.pop("table").view(table.shape), on_device.pop("tile_sequence")
    write_rows = on_device.pop("write_rows") if written is not None else None
    on_device.pop("write_rows", None)
    bounds = on_device.pop("in_sight").view(len(kinds), 2, -1)
    reach = -(-ends[tile_sequence] // KEY_CHUNK)  # chunks per tile, descending
    chunks: dict[Attention, list[Chunk]] = {}
    for kind, (low, high), (low_rows, _) in zip(kinds, bounds, in_sight, strict=True):
        chunks[kind] = [
            _chunk(c, int((reach > c).sum()), slots, owner, low, high, kv_heads)
            for c in range(int(low_rows.min()) // KEY_CHUNK, int(reach[0]))
        ]
    return AttentionPlan(rows=rows, write_rows=write_rows, chunks=chunks, **on_device)


def _written(batch: ForwardBatch, rows: int) -> np.ndarray | None:
    """Return the rows whose KV is written, [rows + shares]: all, then those that are shared, once
    for each sharer; None where no row is shared."""
    if batch.share_starts is None:
        return None
    every = np.arange(rows)
    return np.concatenate([every, np.repeat(every, np.diff(batch.share_starts))])


def _in_sight(
    kind: Attention, positions: np.ndarray, first: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the last position that each row sees, [rows] each."""
    low, high = first.astype(np.int64), positions if kind.causal else last
    if kind.window is None:
        return low, high
    reach = kind.window - 1
    return np.maximum(low, positions - reach), np.minimum(high, positions + reach)


def _padded(values: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([values, np.zeros(size - len(values), np.int64)]).astype(np.int64)


def _tiles(
    starts: np.ndarray, counts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut every sequence's rows into tiles, the longest contexts first. Return the tiles' sequences
    [tiles], the rows in their places [tiles * QUERY_TILE] and each row's place [rows]."""
    order = np.argsort(-ends, kind="stable")
    per_sequence = -(-counts[order] // QUERY_TILE)
    tile_sequence = np.repeat(order, per_sequence)
    first_tile = np.repeat(np.cumsum(per_sequence) - per_sequence, per_sequence)
    offsets = (np.arange(len(tile_sequence)) - first_tile) * QUERY_TILE
    within = offsets[:, None] + np.arange(QUERY_TILE)
    used = within < counts[tile_sequence, None]
    tile_rows = np.where(used, starts[tile_sequence, None] + within, 0).reshape(-1)
    row_places = np.empty(int(counts.sum()), np.int64)
    row_places[tile_rows[used.reshape(-1)]] = np.flatnonzero(used)
    return tile_sequence, tile_rows, row_places


def _slot_table(
    block_tables: np.ndarray, first: np.ndarray, ends: np.ndarray, zero_slot: int
) -> np.ndarray:
    """Return the KV slot of every position of every sequence, up to a full number of chunks."""
    position = np.arange(-(-int(ends.max()) // KEY_CHUNK) * KEY_CHUNK)
    column = np.minimum(position // BLOCK_SIZE, block_tables.shape[1] - 1)
    slots = block_tables[:, column].astype(np.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    in_range = (position >= first[:, None]) & (position < ends[:, None])
    return np.where(in_range, slots, zero_slot)


def _chunk(
    index: int, tiles: int, slots: Tensor, owner: Tensor, low: Tensor, high: Tensor, kv_heads: int
) -> Chunk:
    span = slice(index * KEY_CHUNK, (index + 1) * KEY_CHUNK)
    heads = torch.arange(kv_heads, device=slots.device)[None, :, None]
    rows = slots[:, span].index_select(0, owner[:tiles])[:, None] * kv_heads + heads
    keys = torch.arange(span.start, span.stop, device=slots.device)
    low, high = (
        ends[: tiles * QUERY_TILE].view(tiles, 1, QUERY_TILE, 1, 1) for ends in (low, high)
    )
    return Chunk(tiles, rows.reshape(-1), (keys < low) | (keys > high))


def attend(
    q: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, kind: Attention = CAUSAL
) -> Tensor:
    """Return the attention of every row over its own sequence's cache, scaled by head_dim ** -0.5.

    q [padded rows, heads, head_dim]; keys and values [blocks, BLOCK_SIZE, kv_heads, head_dim], with
    this forward's rows already written. Returns [padded rows, heads * head_dim] in q's dtype.
    """
    _, heads, dim = q.shape
    kv_heads = keys.shape[2]
    group = heads // kv_heads
    tiled = q.index_select(0, plan.tile_rows).float() * dim**-0.5
    tiled = tiled.view(-1, QUERY_TILE, kv_heads, group, dim).transpose(1, 2)
    tiled = tiled.reshape(-1, QUERY_TILE * group, dim)  # [tiles * kv_heads, ...]
    keys, values = keys.view(-1, dim), values.view(-1, dim)
    top = tiled.new_full((*tiled.shape[:2], 1), -torch.inf)
    total, mixed = torch.zeros_like(top), torch.zeros_like(tiled)
    for chunk in plan.chunks[kind]:
        n = chunk.tiles * kv_heads
        k = keys.index_select(0, chunk.slots).view(n, KEY_CHUNK, dim).float()
        v = values.index_select(0, chunk.slots).view(n, KEY_CHUNK, dim).float()
        scores = torch.bmm(tiled[:n], k.transpose(1, 2))
        by_head = scores.view(chunk.tiles, kv_heads, QUERY_TILE, group, KEY_CHUNK)
        by_head.masked_fill_(chunk.hidden, HIDDEN)
        new_top = torch.maximum(top[:n], scores.amax(-1, keepdim=True))
        scores.sub_(new_top)
        if scores.is_cpu:  # there, exp takes 10 to 25 times as long for results that underflow
            weights = scores.clamp_(min=FAINT).exp_()
            weights.view(by_head.shape).masked_fill_(chunk.hidden, 0.0)
        else:
            weights = scores.exp_()
        faded = torch.exp(top[:n] - new_top)
        total[:n] = total[:n] * faded + weights.sum(-1, keepdim=True)
        mixed[:n] = mixed[:n] * faded + torch.bmm(weights, v)
        top[:n] = new_top
    out = (mixed / total).view(-1, kv_heads, QUERY_TILE, group, dim).transpose(1, 2)
    out = out.reshape(-1, heads * dim).index_select(0, plan.row_places)
    return out.to(q.dtype)
