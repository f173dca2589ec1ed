"""Let a thread run after others."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

LOWEST_PRIORITY = 19


def step_back(priority: int = LOWEST_PRIORITY) -> None:
    """Let this thread run after all others: those that serve must not wait for it. It cannot be
    undone. Only Linux has priorities of threads; nothing happens elsewhere, or where that is not
    allowed."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), priority)
