"""The measured limits of this machine: how fast it reads and how fast it multiplies."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from paceline.kernels import build
from paceline.models.native_network import read_bytes

PROBE = 2048  # rows of the product that the peak is measured with
READS = 5
BUFFER = 2**30  # bytes that are read: more than caches hold


def matmul_peak(dtype: torch.dtype, device: str, seconds: float = 0.3) -> float:
    """Operations per second of a large product here, measured: the best of several."""
    a, b = (torch.randn(PROBE, PROBE, device=device).to(dtype) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        best = min(best, _seconds(lambda: a @ b, device))
    return 2 * PROBE**3 / best


def read_bandwidth(device: str, size: int = BUFFER) -> float:
    """Bytes per second of a pure read loop over `size` bytes with the forward's threads: the best
    of several. On CPU the fused kernels' own loop, where they run."""
    buffer = torch.ones(size // 4, dtype=torch.float32, device=device)
    work: Callable[[], object] = buffer.sum
    if device == "cpu" and build.available()[0]:
        work = partial(read_bytes, build.load().library, buffer.view(torch.uint8))
    best = min(_seconds(work, device) for _ in range(1 + READS))
    return buffer.nbytes / best


def _seconds(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
