"""Work that may be slow, on threads of its own: nobody who serves waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

REST = 10.0  # times as long as work took, its result is kept at least
T = TypeVar("T")


class Flight(Generic[T]):
    """Runs one piece of work at a time, for all who ask meanwhile, and keeps its result for
    `fresh` seconds, longer where the work takes long: serving needs the cores. Work that hangs
    holds one thread, and no exit of the process."""

    def __init__(self, name: str, work: Callable[[], T], fresh: float) -> None:
        self._name, self._work, self._fresh = name, work, fresh
        self._running: Future[T] | None = None
        self._landed: tuple[float, T] | None = None  # until when it is fresh, the result
        self._number = 0  # of the work whose results count

    @property
    def latest(self) -> T | None:
        """The last result, however old; None where there is none yet."""
        return None if self._landed is None else self._landed[1]

    async def result(self, patience: float) -> T:
        """Return a result that is fresh. Raises what the work raises, and TimeoutError where it
        takes longer than `patience` seconds; it then goes on for those who ask later."""
        if self._landed is not None and time.monotonic() < self._landed[0]:
            return self._landed[1]
        if self._running is None or self._running.done():
            self._running = on_thread(self._name, partial(self._run, self._number))
        return await patiently(self._running, patience)

    def forget(self) -> None:
        """Have the next who asks wait for new work: something has changed."""
        self._landed = self._running = None
        self._number += 1

    def _run(self, number: int) -> T:
        began = time.monotonic()
        value = self._work()
        now = time.monotonic()
        if number == self._number:  # else it was begun before the change
            self._landed = (now + max(self._fresh, REST * (now - began)), value)
        return value


def on_thread(name: str, work: Callable[[], T]) -> Future[T]:
    """Start work on a thread that ends with the process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


async def patiently(future: Future[T], seconds: float) -> T:
    """Wait for work without ending it. Raises TimeoutError."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(_looked_at)
    return await asyncio.wait_for(asyncio.shield(waiting), seconds)


def _looked_at(future: asyncio.Future[T]) -> None:
    """Look at an error that comes when nobody waits any more: asyncio would log it as lost."""
    if not future.cancelled():
        future.exception()
