"""The OpenMP runtime that torch brings, which the kernels share, and the threads that it keeps."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

NAMES = ("libgomp", "libiomp5", "libomp")
SOFT = 1  # omp_pause_soft: what threads keep for themselves stays


def openmp_runtime() -> str | None:
    """Return the path of the runtime that torch has loaded, or will load: a second one would fight
    over cores. None where torch was built without OpenMP."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        file = line.split()[-1]
        if Path(file).name.startswith(NAMES):
            return file
    bundled = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    return str(bundled[0]) if bundled else None


def release_threads() -> None:
    """End the OpenMP threads that work for the calling thread. Its next parallel region starts new
    ones.

    Each thread that has run a parallel region keeps others for the next. While a process has more
    of these than cores, GNU's runtime lets them sleep right after a region, and they wake too late
    for the next one: call this on a thread that leaves its work to another thread.
    """
    runtime = openmp_runtime()
    if runtime is not None:
        pause = getattr(ctypes.CDLL(runtime), "omp_pause_resource_all", None)
        if pause is not None:  # since OpenMP 5.0
            pause(SOFT)
