"""SIGTERM and Ctrl-C as a request to end soon."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


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
