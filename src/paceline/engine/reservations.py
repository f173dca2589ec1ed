"""The bound on what a server holds, kept from before a prompt is read until its streams end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from paceline.core import InvalidRequest, QueueFull

RETRY_AFTER = 1.0  # seconds; a stream ends more often than that on a server that is full


class StreamLimit:
    """Bounds, by `most`, the streams that run or queue (`held`) and those whose prompts are still
    being encoded. `running` tells how many run. Belongs to the event loop."""

    def __init__(self, most: int, held: Callable[[], int], running: Callable[[], int]) -> None:
        self.most, self._held, self._running = most, held, running
        self.reserved = 0

    def reserve(self, n: int, prompts: int = 1) -> Reservation:
        """Reserve places for `n` streams of each prompt. Use it as a context manager.

        Raises InvalidRequest naming what can never fit, QueueFull for what does not fit now.
        """
        if n > self.most:
            raise InvalidRequest("n", n, f"at most {self.most}, all that this server holds at once")
        if n * prompts > self.most:
            each = "" if n == 1 else f" with n = {n}"
            expected = f"at most {self.most // n}{each}: this server holds {self.most} at once"
            raise InvalidRequest("prompt", f"{prompts} prompts", expected)
        taken = self._held() + self.reserved
        if taken + n * prompts > self.most:
            raise QueueFull(taken - self._running(), retry_after=RETRY_AFTER)
        self.reserved += n * prompts
        return Reservation(self, n * prompts)


class Reservation:
    """Places for `streams` streams, asked for at `arrival` on the monotonic clock. What submit()
    has not taken by the end of the block is given back."""

    def __init__(self, limit: StreamLimit, streams: int) -> None:
        self.arrival = time.monotonic()
        self._limit, self._left = limit, streams

    def take(self, streams: int) -> None:
        """Hands over to streams that are held from now on."""
        if streams > self._left:
            raise ValueError(f"{streams} streams, and places for {self._left} are left")
        self._left -= streams
        self._limit.reserved -= streams

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.take(self._left)
