"""Work off the event loop, in fair turns among clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from paceline.engine.smallest_first import SmallestFirst

T = TypeVar("T")


class Turns:
    """Runs jobs on one thread; clients share its time evenly, however many jobs each has waiting.

    A job is due at a virtual time: when it arrives, or after what the same client has waiting.
    The job that is due first runs next (start-time fair queueing, Goyal, Vin and Cheng 1996).
    """

    def __init__(self, name: str) -> None:
        self._jobs = SmallestFirst(name)
        self._lock = threading.Lock()
        self._now = 0.0  # the virtual time: when the job that runs was due
        self._busy_until: dict[str, float] = {}

    async def run(self, job: Callable[[], T], *, client: str, cost: float) -> T:
        """Return or raise what `job` does. `cost` is its work, in a unit that all jobs share."""
        return await asyncio.wrap_future(self.submit(job, client=client, cost=cost))

    def submit(self, job: Callable[[], T], *, client: str, cost: float) -> Future[T]:
        with self._lock:
            due = max(self._now, self._busy_until.get(client, 0.0))
            self._busy_until[client] = due + cost

        def run() -> T:
            with self._lock:
                self._now = due
                busy = self._busy_until.items()
                self._busy_until = {name: end for name, end in busy if end > due}
            return job()

        return self._jobs.submit(due, run)
