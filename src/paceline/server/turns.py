"""Work off the event loop, in fair turns among clients."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Turns:
    """Runs jobs on one thread; clients share its time evenly, however many jobs each has waiting.

    A job is due at a virtual time: when it arrives, or after what the same client has waiting.
    The job that is due first runs next (start-time fair queueing, Goyal, Vin and Cheng 1996).
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)
        self._lock = threading.Lock()
        self._count = itertools.count()
        self._waiting: list[tuple[float, int, Callable[[], object], Future[Any]]] = []
        self._now = 0.0  # the virtual time: when the job that runs was due
        self._busy_until: dict[str, float] = {}

    async def run(self, job: Callable[[], T], *, client: str, cost: float) -> T:
        """Return or raise what `job` does. `cost` is its work, in a unit that all jobs share."""
        return await asyncio.wrap_future(self.submit(job, client=client, cost=cost))

    def submit(self, job: Callable[[], T], *, client: str, cost: float) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            due = max(self._now, self._busy_until.get(client, 0.0))
            self._busy_until[client] = due + cost
            heapq.heappush(self._waiting, (due, next(self._count), job, future))
        self._thread.submit(self._run_next)
        return future

    # -- inside -----------------------------------------------------------------------------------

    def _run_next(self) -> None:
        with self._lock:
            self._now, _, job, future = heapq.heappop(self._waiting)
            behind = [(client, due) for client, due in self._busy_until.items() if due > self._now]
            self._busy_until = dict(behind)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)
