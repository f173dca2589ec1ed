"""The measured limits of this machine: how fast it reads and how fast it multiplies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from pydantic import PositiveFloat

from paceline.engine.kept import Kept
from paceline.engine.machine import cpu_name, usable_cores
from paceline.kernels import build
from paceline.models.native_network import read_bytes

SMALLEST, LARGEST, GROWTH = 256, 2048, 2  # rows of the products that the peak is measured with
READS = 5
BUFFER = 2**30  # bytes that are read: more than caches hold


def matmul_peak(dtype: torch.dtype, device: str, seconds: float = 0.3) -> float:
    """Operations per second of square products here, measured: the best of several.

    They grow up to LARGEST rows, while the next one still fits into about `seconds`: for a format
    that a CPU has no instructions for, torch needs most of a minute for the largest.
    """
    rows, best = SMALLEST, 0.0
    product = _product(rows, dtype, device)
    _seconds(product, device)  # the first one also starts torch's threads
    end = time.perf_counter() + seconds
    while True:
        took = _seconds(product, device)
        best = max(best, 2 * rows**3 / took)
        left = end - time.perf_counter()
        if left <= 0:
            return best
        if rows < LARGEST and GROWTH**3 * took < left:
            rows *= GROWTH
            product = _product(rows, dtype, device)


@cache
def peak_of(dtype: torch.dtype, device: str) -> float:
    """Return matmul_peak, measured once in this process."""
    return matmul_peak(dtype, device)


@dataclass(frozen=True, slots=True)
class ProductSpeeds:
    """Operations per second of torch's products on a CPU."""

    bfloat16: PositiveFloat
    float32: PositiveFloat

    @property
    def faster(self) -> torch.dtype:
        return torch.bfloat16 if self.bfloat16 >= self.float32 else torch.float32


def product_speeds() -> ProductSpeeds:
    """Return those of this CPU and this number of threads: measured once, and kept, so that what is
    decided by them stays."""
    machine = {"cpu": cpu_name(), "cores": usable_cores(), "threads": torch.get_num_threads()}
    kept = Kept("products", {**machine, "torch": torch.__version__}, ProductSpeeds)
    return kept.read() or kept.write(
        ProductSpeeds(peak_of(torch.bfloat16, "cpu"), peak_of(torch.float32, "cpu"))
    )


def _product(rows: int, dtype: torch.dtype, device: str) -> Callable[[], object]:
    a, b = (torch.randn(rows, rows, device=device).to(dtype) for _ in range(2))
    return partial(torch.matmul, a, b)


def read_bandwidth(device: str, size: int = BUFFER) -> float:
    """Bytes per second of a loop that only reads `size` bytes with the forward's threads: the best
    of several. On CPU the fused kernels' own loop (pl_read), where they run."""
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
