"""Attention of the torch backend with a window: rows that whole chunks of keys are hidden from."""

from __future__ import annotations

import numpy as np
import torch

from paceline.models.attention import KEY_CHUNK, attend, make_plan
from paceline.models.batch import BLOCK_SIZE, ForwardBatch
from paceline.models.config import Attention

LENGTH, KV_HEADS, GROUP, DIM = 2 * KEY_CHUNK + 90, 2, 2, 16
NEAR = Attention(window=70)


def attended(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: int) -> torch.Tensor:
    """Return the attention of one sequence's rows from position `first` on."""
    rows, blocks = len(q) - first, len(keys) - 1  # the last block is the zeros'
    batch = ForwardBatch(
        ids=np.zeros(rows, np.int32),
        positions=np.arange(first, len(q), dtype=np.int32),
        seq_starts=np.array([0, rows], np.int32),
        block_tables=np.arange(blocks, dtype=np.int32)[None],
        logit_rows=np.zeros(0, np.int32),
    )
    plan = make_plan(batch, blocks * BLOCK_SIZE, KV_HEADS, torch.device("cpu"), (NEAR,))
    mine = torch.nn.functional.pad(q[first:], (0, 0, 0, 0, 0, len(plan.positions) - rows))
    return attend(mine, keys, values, plan, NEAR)[:rows]


def test_rows_see_their_window_alone_or_with_mates() -> None:
    torch.manual_seed(0)
    blocks = -(-LENGTH // BLOCK_SIZE)
    q = 4 * torch.randn(LENGTH, KV_HEADS * GROUP, DIM)
    keys, values = torch.randn(2, blocks + 1, BLOCK_SIZE, KV_HEADS, DIM)
    keys[-1] = values[-1] = 0
    whole = attended(q, keys, values, 0)
    for first in (1, 69, KEY_CHUNK + 80, LENGTH - 1):
        assert torch.equal(attended(q, keys, values, first), whole[first:])
    seen = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)[None]).clamp(-1, 70)
    hidden = (seen < 0) | (seen > NEAR.window - 1)
    per_head = [each.view(-1, KV_HEADS, DIM)[:LENGTH].double() for each in (keys, values)]
    k, v = (each.repeat_interleave(GROUP, dim=1).transpose(0, 1) for each in per_head)
    scores = q.double().transpose(0, 1) @ k.transpose(1, 2) * DIM**-0.5
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(
        whole.double(), expected.transpose(0, 1).reshape(LENGTH, -1), atol=1e-5, rtol=1e-4
    )
