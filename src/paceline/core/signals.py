"""SIGTERM and Ctrl-C as a request to end soon, and children that end with their parent."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

PR_SET_PDEATHSIG = 1
# Looked up here: between fork and exec, nothing may wait for a lock that another thread held.
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@contextmanager
def ending_on_signals(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` on SIGTERM and Ctrl-C; a second one acts as usual. Only a process's main thread
    gets signals: in another one nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual: dict[int, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        end()
        signal.signal(number, usual[number])

    for number in (signal.SIGTERM, signal.SIGINT):
        usual[number] = signal.signal(number, ask)
    try:
        yield
    finally:
        for caught, handler in usual.items():
            signal.signal(caught, handler)


def die_with_parent() -> None:
    """Let the system kill this process when the thread that started it ends (Linux). For
    subprocess's `preexec_fn`."""
    if _PRCTL is not None:
        _PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
