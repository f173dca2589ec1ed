"""Memory that a step frees is what the next step needs: the C library should keep it."""

from __future__ import annotations

import ctypes
import sys

# mallopt's parameters, of glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Makes glibc keep large blocks that are freed, for the life of this process; whether it did.

    Otherwise every large tensor is mapped anew, and the kernel clears each of its pages: most of a
    training step's system time on a CPU. Other C libraries have no such switch.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, 64 << 20))
    return all([mallopt(name, value) == 1 for name, value in settings])
