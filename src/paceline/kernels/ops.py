"""Sampling ops, native for CPU float32 rows where the kernels run, else the twins in reference.py,
which give the same bits."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from ctypes import c_double, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from paceline.kernels import build, reference
from paceline.kernels.reference import (
    NO_TIE,
    ROLE_ACCEPT,
    ROLE_DRAFT,
    ROLE_RESIDUAL,
    ROLE_TARGET,
    NoiseKey,
    gumbel_noise_of,
    uniform,
)

__all__ = [
    "NO_TIE", "ROLE_ACCEPT", "ROLE_DRAFT", "ROLE_RESIDUAL", "ROLE_TARGET", "argmax",
    "gumbel_argmax", "gumbel_argmax_rows", "gumbel_noise", "gumbel_noise_of", "logsumexp",
    "logsumexp_rows", "top_threshold", "uniform",
]  # fmt: skip

_SEED_MASK = 2**64 - 1


class _Noise(ctypes.Structure):
    _fields_ = (
        ("seed", c_uint64),
        *((name, c_uint32) for name in ("position", "round_start", "choice_role")),
    )


def argmax(logits: Tensor) -> int:
    """Return the id of the largest of `logits` [V]; ties to the lowest id."""
    if logits.device.type == "cpu":  # numpy takes a twentieth of torch's time for one row
        return int(logits.numpy().argmax())
    return int(logits.argmax())


def gumbel_argmax(
    logits: Tensor,
    *,
    inv_temperature: float,
    seed: int,
    threshold: float = -math.inf,
    tie_id: int = NO_TIE,
    **key: Unpack[NoiseKey],
) -> int:
    """Return argmax(logits * inv_temperature + noise) over the kept ids; ties to the lowest id.

    `logits` is float32 [V] without NaN. Kept are ids with logit > threshold, and those with
    logit == threshold up to `tie_id`. The noise is a function of (seed, choice, position,
    round_start, role, id) alone: see reference.py.
    """
    native = _native(logits)
    if native is None:
        return reference.gumbel_argmax(
            logits,
            inv_temperature=inv_temperature,
            seed=seed,
            threshold=threshold,
            tie_id=tie_id,
            **key,
        )
    noise = _noise(seed, **key)
    token = native.pl_gumbel_argmax(
        logits.data_ptr(), len(logits), noise, inv_temperature, threshold, tie_id
    )
    return int(token)


def gumbel_argmax_rows(
    logits: Tensor,
    rows: Sequence[int],
    *,
    inv_temperatures: Sequence[float],
    seeds: Sequence[int],
    choices: Sequence[int],
    positions: Sequence[int],
) -> list[int]:
    """Return gumbel_argmax() of some rows of `logits` [R, V], the target's noise for each: on the
    CPU the rows are shared out among the threads."""
    native = _native(logits)
    keys = [
        (seed, NoiseKey(choice=choice, position=position))
        for seed, choice, position in zip(seeds, choices, positions, strict=True)
    ]
    if native is None:
        return [
            gumbel_argmax(logits[row], inv_temperature=inv_temperature, seed=seed, **key)
            for row, inv_temperature, (seed, key) in zip(rows, inv_temperatures, keys, strict=True)
        ]
    count, ids = len(rows), np.empty(len(rows), dtype=np.int64)
    # The arrays are named so that they outlive the call: an address alone keeps nothing alive.
    places = np.array(rows, dtype=np.int64)
    factors = np.array(inv_temperatures, dtype=np.float32)
    noises = (_Noise * count)(*(_noise(seed, **key) for seed, key in keys))
    native.pl_gumbel_argmax_rows(
        logits.data_ptr(),
        logits.shape[1],
        places.ctypes.data,
        count,
        noises,
        factors.ctypes.data,
        torch.get_num_threads(),
        ids.ctypes.data,
    )
    return [int(token) for token in ids]


def gumbel_noise(vocab: int, seed: int, **key: Unpack[NoiseKey]) -> Tensor:
    """Return the noise that gumbel_argmax adds, float32 [vocab]."""
    out = torch.empty(vocab)
    native = _native(out)
    if native is None:
        return reference.gumbel_noise(vocab, seed, **key)
    native.pl_gumbel_noise(out.data_ptr(), vocab, _noise(seed, **key))
    return out


def top_threshold(
    logits: Tensor, inv_temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[float, int]:
    """Return (threshold, tie_id) of the tokens of `logits` [V] that min_p, then top_k, then top_p
    (over the renormalised rest) keep: logits above the threshold, and those equal to it with ids up
    to tie_id. Ties go to the lowest ids; top_p keeps the shortest prefix that reaches it. 0 or less
    switches top_k off, 1 top_p, 0 min_p. Raises ValueError where NaN leaves nothing to keep."""
    native = _native(logits)
    if native is None:
        return reference.top_threshold(logits, inv_temperature, top_k, top_p, min_p)
    threshold, tie_id = c_float(), c_int32()
    kept = native.pl_top_threshold(
        logits.data_ptr(),
        len(logits),
        inv_temperature,
        max(top_k, 0),
        top_p,
        math.log(min_p) if min_p > 0 else -math.inf,
        ctypes.byref(threshold),
        ctypes.byref(tie_id),
    )
    if not kept:
        raise ValueError("logits hold NaN or infinity: no token can be kept")
    return (-math.inf, NO_TIE) if kept == len(logits) else (threshold.value, tie_id.value)


def logsumexp(logits: Tensor) -> float:
    """Return log(sum(exp(logits))) of float32 [V], the same in any order of summation. Raises
    ValueError for logits that hold NaN or infinity."""
    native = _native(logits)
    if native is None:
        return reference.logsumexp(logits)
    top = c_float()
    total = native.pl_total_weight(logits.data_ptr(), len(logits), 1.0, ctypes.byref(top))
    return _log_of_sum(top.value, total)


def logsumexp_rows(logits: Tensor) -> list[float]:
    """Return logsumexp() of each row of `logits` [R, V]: on the CPU the rows are shared out among
    the threads. Raises ValueError for logits that hold NaN or infinity."""
    native = _native(logits)
    if native is None:
        return [reference.logsumexp(row) for row in logits]
    count, vocab = logits.shape
    tops, totals = np.empty(count, dtype=np.float32), np.empty(count, dtype=np.int64)
    native.pl_total_weight_rows(
        logits.data_ptr(),
        vocab,
        count,
        1.0,
        torch.get_num_threads(),
        tops.ctypes.data,
        totals.ctypes.data,
    )
    return [_log_of_sum(*row) for row in zip(tops.tolist(), totals.tolist(), strict=True)]


def _log_of_sum(top: float, total: int) -> float:
    if total <= 0 or not math.isfinite(top):
        raise ValueError("logits hold NaN or infinity: their sum has no logarithm")
    return top + math.log(total * 2.0**-reference.WEIGHT_BITS)


def _noise(seed: int, **key: Unpack[NoiseKey]) -> _Noise:
    return _Noise(seed & _SEED_MASK, *reference.counter_words(**key))


def _native(row: Tensor) -> ctypes.CDLL | None:
    if row.device.type != "cpu" or row.dtype != torch.float32 or not row.is_contiguous():
        return None
    return _library()


@cache
def _library() -> ctypes.CDLL | None:
    """Return the kernels with the sampling ops' signatures; None where they cannot be built."""
    try:
        library = build.load().library
    except build.BuildError:
        return None
    noise, out = ctypes.POINTER(_Noise), c_void_p
    row = (c_void_p, c_int64)
    signatures = {
        "pl_gumbel_argmax": (c_int64, *row, noise, c_float, c_float, c_int32),
        "pl_gumbel_argmax_rows": (None, *row, *row, noise, c_void_p, c_int64, c_void_p),
        "pl_gumbel_noise": (None, *row, noise),
        "pl_total_weight": (c_int64, *row, c_float, out),
        "pl_total_weight_rows": (None, *row, c_int64, c_float, c_int64, c_void_p, c_void_p),
        "pl_top_threshold": (c_int64, *row, c_float, c_int64, c_double, c_double, out, out),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library
