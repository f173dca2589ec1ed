"""Draft trees in native code: see drafters/trees.py, which is the specification."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import c_double, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch

from paceline.core import DraftTree
from paceline.kernels import build


def can_grow(logits: torch.Tensor) -> bool:
    """Return whether draft_tree() takes these logits, [slots, tokens], on this machine."""
    fits = logits.device.type == "cpu" and logits.dtype is torch.float32 and logits.stride(1) == 1
    return fits and build.runs_here()


def draft_tree(
    logits: torch.Tensor,
    ids: torch.Tensor | None,
    drafted: Sequence[int],
    confidences: Sequence[float],
    width: int,
    nodes: int,
) -> DraftTree:
    """Return the best tree of up to `nodes` nodes out of the `width` likeliest tokens of each slot,
    where slots do not depend on one another.

    `logits` float32 [slots, n] are those of the tokens `ids` int64 [n], or of 0, 1, … for None. The
    first candidate of a slot is the `drafted` one, with its probability of `confidences`.
    """
    slots, count = logits.shape
    tokens, parents, chances = (c_int32 * nodes)(), (c_int32 * nodes)(), (c_double * nodes)()
    first, sure = array("i", drafted), array("d", confidences)
    made = _grow()(
        logits.data_ptr(), logits.stride(0), slots, count,
        None if ids is None else ids.data_ptr(), first.buffer_info()[0], sure.buffer_info()[0],
        width, nodes, tokens, parents, chances,
    )  # fmt: skip
    return DraftTree(tokens[:made], parents[:made], chances[:made])


@cache
def _grow() -> Any:
    """Return the native function. Raises BuildError."""
    function = build.held().pl_draft_tree
    function.argtypes = (
        c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_int64,
        c_void_p, c_void_p, c_void_p,
    )  # fmt: skip
    function.restype = c_int64
    return function
