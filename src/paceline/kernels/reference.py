"""Sampling ops in plain torch: the specification that native and CUDA kernels equal bit by bit.

Noise. Philox4x32-10 (Salmon et al., SC 2011), key = the 64-bit seed (low word, high word),
counter = (token id // 4, position, round start, choice | role << 16). Output word (token id % 4) is
the token's 32 random bits x. Then, in float32, every operation rounded on its own (no fused
multiply-add):

    v = min((float(x) + 0.5) * 2^-32, 1 - 2^-24)
    u = 1 - v;  E = -(log(u) + ((1 - u) - v) * (2 - u))         exponential: -log1p(-v)
    gumbel = -log(E)

    log(a): a = m * 2^e with m in [sqrt(1/2), sqrt(2)), from the bits: e = (bits - 0x3f3504f3) >> 23
            f = m - 1;  z = f * f;  p = Horner(LOG, f)
            ((f * z) * p + e * LN2_LOW - 0.5 * z + f) + e * LN2_HIGH, left to right as coded below

Golden values in tests/kernels/test_noise.py pin it: text that a seed gave must never change.

Weights. exp((l - max) * inv_temperature) is a whole number of 2^-40 (rounded down), from a float32
sequence of the same kind. So sums do not depend on their order, and thresholds are exact.
"""

from __future__ import annotations

import math
from typing import Required, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor

ROLE_TARGET, ROLE_ACCEPT, ROLE_RESIDUAL, ROLE_DRAFT = range(4)  # independent streams of noise
NO_TIE = 2**31 - 1  # a tie_id that every token id is below

_MASK = 0xFFFFFFFF
_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
LOG = (
    0.3333333134651184, -0.24999989569187164, 0.20000708103179932, -0.1666848063468933,
    0.14249937236309052, -0.12411050498485565, 0.11661510914564133, -0.115712009370327,
    0.07149753719568253,
)  # fmt: skip
EXP = (
    0.5, 0.1666666716337204, 0.04166646674275398, 0.0083332983776927,
    0.0013933650916442275, 0.00019899285689461976,
)  # fmt: skip
LN2_HIGH, LN2_LOW = 0.693359375, -0.00021219444170128554
LOG2_E = 1.4426950216293335
WEIGHT_BITS = 40


Word = TypeVar("Word", int, Tensor)


class NoiseKey(TypedDict, total=False):
    """Whose noise it is, beside the seed: equal keys give equal noise."""

    choice: Required[int]
    position: Required[int]
    round_start: int  # default 0
    role: int  # default ROLE_TARGET


def counter_words(
    *, choice: int, position: int, round_start: int = 0, role: int = ROLE_TARGET
) -> tuple[int, int, int]:
    """Return the three words of the counter that follow the token's."""
    return position & _MASK, round_start & _MASK, choice | role << 16


def philox(words: list[Word], seed: int) -> list[Word]:
    """Philox4x32-10 of four 32-bit words: whole numbers, or int64 tensors of one block each."""
    a, b, c, d = words
    keys = [seed & _MASK, seed >> 32 & _MASK]
    for _ in range(10):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]  # wraps: the low 64 bits are right
        a, b = second >> 32 & _MASK ^ b ^ keys[0], second & _MASK
        c, d = first >> 32 & _MASK ^ d ^ keys[1], first & _MASK
        keys = [(key + weyl) & _MASK for key, weyl in zip(keys, _WEYL, strict=True)]
    return [a, b, c, d]


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of positive normal float32, as the specification spells it."""
    bits = x.view(torch.int32)
    exponent = (bits - 0x3F3504F3) >> 23
    f = (bits - (exponent << 23)).view(torch.float32) - 1.0
    e, z = exponent.float(), f * f
    p = torch.full_like(f, LOG[-1])
    for coefficient in reversed(LOG[:-1]):
        p = p * f + coefficient
    y = (f * z) * p
    y = y + e * LN2_LOW
    y = y - z * 0.5
    return (f + y) + e * LN2_HIGH


def gumbel_of_bits(x: Tensor) -> Tensor:
    """Return standard Gumbel noise, float32, from 32 random bits each (int64)."""
    v = ((x.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    u = 1.0 - v
    exponential = log(u) + ((1.0 - u) - v) * (2.0 - u)
    return -log(-exponential)


def gumbel_noise(
    vocab: int, seed: int, *, device: torch.device | str = "cpu", **key: Unpack[NoiseKey]
) -> Tensor:
    """Return the noise of every token id at one position, float32 [vocab]."""
    index = torch.arange(-(-vocab // 4), device=device)
    others = (torch.full_like(index, word) for word in counter_words(**key))
    words = philox([index, *others], seed)
    return gumbel_of_bits(torch.stack(words, dim=1).flatten()[:vocab])


def gumbel_noise_of(
    ids: Tensor,
    positions: Tensor,
    seed: int,
    *,
    choice: int,
    round_start: int = 0,
    role: int = ROLE_TARGET,
) -> Tensor:
    """Return the noise of single tokens, float32; ids and positions are int64 of that shape."""
    index = ids // 4
    _, *key = counter_words(choice=choice, position=0, round_start=round_start, role=role)
    others = (torch.full_like(index, word) for word in key)
    words = torch.stack(philox([index, positions & _MASK, *others], seed), dim=-1)
    return gumbel_of_bits(words.gather(-1, (ids % 4)[..., None])[..., 0])


def gumbel_argmax(
    logits: Tensor,
    *,
    inv_temperature: float,
    seed: int,
    threshold: float = -math.inf,
    tie_id: int = NO_TIE,
    **key: Unpack[NoiseKey],
) -> int:
    noise = gumbel_noise(len(logits), seed, device=logits.device, **key)
    ids = torch.arange(len(logits), device=logits.device)
    kept = (logits > threshold) | ((logits == threshold) & (ids <= tie_id))
    scores = (logits * inv_temperature + noise).masked_fill(~kept, -math.inf)
    return int(scores.argmax())


def uniform(seed: int, **key: Unpack[NoiseKey]) -> float:
    """Return a number strictly between 0 and 1: an odd multiple of 2^-53, from words 0 and 1. The
    role is ROLE_ACCEPT unless another is given."""
    key.setdefault("role", ROLE_ACCEPT)
    high, low, _, _ = philox([0, *counter_words(**key)], seed)
    return ((high >> 6 << 26 | low >> 6) + 0.5) * 2.0**-52


def weights(logits: Tensor, inv_temperature: float) -> Tensor:
    """Return exp((logits - max) * inv_temperature) in units of 2^-40, rounded down, int64."""
    x = ((logits - logits.max()) * inv_temperature).clamp(min=-64.0)
    n = (x * LOG2_E + 12582912.0) - 12582912.0
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = torch.full_like(r, EXP[-1])
    for coefficient in reversed(EXP[:-1]):
        p = p * r + coefficient
    y = (p * (r * r) + r) + 1.0
    scale = ((n.int() + (127 + WEIGHT_BITS)) << 23).view(torch.float32)
    return (y * scale).long()


def top_threshold(
    logits: Tensor, inv_temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[float, int]:
    values, ids = torch.sort(logits, descending=True, stable=True)
    kept = len(values)
    if min_p > 0:
        distance = (values.double() - values[0].double()) * float(np.float32(inv_temperature))
        kept = int((distance >= math.log(min_p)).sum())
    if top_k > 0:
        kept = min(kept, top_k)
    if top_p < 1:
        mass = weights(values[:kept], inv_temperature)
        before = mass.cumsum(0) - mass
        kept = int((before.double() < top_p * float(mass.sum())).sum())
    if kept == len(values):
        return -math.inf, NO_TIE
    threshold = values[kept - 1]
    return float(threshold), int(ids[:kept][values[:kept] == threshold].max())


def logsumexp(logits: Tensor) -> float:
    total = int(weights(logits, 1.0).sum())
    return float(logits.max()) + math.log(total * 2.0**-WEIGHT_BITS)
